"""What a teacher and the rest of a recipe demand of one another, refused with the reason."""

from headrace.config.algorithm import AlgorithmSection
from headrace.config.generation import SamplingSection
from headrace.config.teacher import LocalTeacher, SelfTeacher, ServerTeacher

Teacher = LocalTeacher | ServerTeacher | SelfTeacher


def teacher_problem(teacher: Teacher | None, algorithm: AlgorithmSection, sampling: SamplingSection) -> str | None:
    """Why the three do not fit; None when they do."""
    coefficient = algorithm.distillation_coefficient
    if teacher is None and coefficient > 0:
        return (
            f"algorithm.distillation_coefficient = {coefficient:g}, but nobody is there to learn from; add the table [teacher], or set the "
            "coefficient to 0"
        )
    if teacher is not None and coefficient == 0:
        return (
            "[teacher] is given, but with algorithm.distillation_coefficient = 0 nothing is learned from it; set the coefficient above 0 "
            "(algorithm.name = 'distill' does), or leave the table out"
        )
    if isinstance(teacher, ServerTeacher) and sampling.temperature != 1:
        return (
            f"teacher.type = 'server' gives log-probabilities at temperature 1, but sampling.temperature = {sampling.temperature:g}, and "
            "the two must be compared at the same one; set sampling.temperature to 1, or use a teacher of type 'local'"
        )
    if isinstance(teacher, SelfTeacher) and not algorithm.learns_from_rewards:
        return (
            f"teacher.type = 'self' with advantage.type = {algorithm.advantage.type!r}: a policy that has only itself to learn from stays "
            "what it is; choose an advantage that looks at rewards (for instance algorithm.name = 'grpo' with distillation_coefficient), "
            "or another teacher"
        )
    return None
