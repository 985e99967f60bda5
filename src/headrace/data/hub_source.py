"""Rows of a data set on the Hugging Face hub. The library is imported only when a recipe asks for it."""

from headrace.config.data import HubSource
from headrace.data.rows import Row, rows_from_iterable
from headrace.errors import DataError


def load_hub(source: HubSource) -> list[Row]:
    """Download (or take from the local cache) one split of a data set.

    Raises:
        DataError: The library is missing, the hub cannot be reached, or it has no such data set, configuration or split.
    """
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise DataError("data of type 'hub' needs a package that is missing; run: pip install 'headrace[hub]'") from error
    try:
        rows = datasets.load_dataset(source.name, source.config, split=source.split)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"hub data set {source.name!r} (config {source.config!r}, split {source.split!r}) cannot be loaded: {reason}; check its "
            "name and the network, or download it and set data.source.type = 'file'"
        ) from error
    return rows_from_iterable(rows, origin=f"hub data set {source.name!r}")
