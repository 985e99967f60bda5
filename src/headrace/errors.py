"""What can go wrong, as types.

Two families matter to a caller. A `UserError` is something the user can mend (a recipe, a file, a reward
function): the command line prints its message as one line and exits with 2. Any other `HeadraceError` means that the
run itself broke: exit code 1. Every message says what is wrong with which values, why it cannot work, and
what to set.
"""


class HeadraceError(Exception):
    """Base of every error that headrace raises on purpose."""


class UserError(HeadraceError):
    """Something the user gave cannot work; nothing was lost, and the message says what to change."""


class RecipeError(UserError):
    """The recipe does not parse, or its settings contradict one another."""


class DataError(UserError):
    """The data set is missing, empty, or lacks what training needs."""


class ModelError(UserError):
    """The model is missing, damaged, or not one that can be trained here."""


class RewardError(UserError):
    """A reward function cannot be imported, breaks its contract, or fails again and again."""


class CheckpointError(UserError):
    """A checkpoint is incomplete, damaged, or belongs to another run."""


class RunFolderError(UserError):
    """The run folder exists already, or cannot be written (disk full, no permission)."""


class StalledError(HeadraceError):
    """A wait ran past its limit; the message names what was waited for."""


class PartDiedError(HeadraceError):
    """An engine, a reward worker, the trainer or a task of the controller ended when it should not have."""


class LedgerError(HeadraceError):
    """The books do not balance: a bug of headrace, reported instead of trained on."""
