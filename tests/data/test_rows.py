import numpy as np
import pytest

from headrace.data.rows import rows_from_iterable
from headrace.errors import DataError

CONVERSATION = [{"role": "user", "content": "What is 3 + 4?"}]


def test_rows_from_python_may_be_any_iterable_of_mappings():
    assert rows_from_iterable(({"prompt": str(number)} for number in range(2)), origin="rows") == [{"prompt": "0"}, {"prompt": "1"}]
    array = np.array(CONVERSATION, dtype=object)
    assert rows_from_iterable([{"prompt": array}], origin="rows")[0]["prompt"] is array


def test_rows_from_a_hugging_face_dataset():
    datasets = pytest.importorskip("datasets")
    rows = rows_from_iterable(datasets.Dataset.from_list([{"prompt": CONVERSATION, "answer": "7"}]), origin="rows")
    assert rows == [{"prompt": CONVERSATION, "answer": "7"}]


@pytest.mark.parametrize(
    ("rows", "words"),
    [([], "no rows"), (["text"], "row 0 is text"), ({"prompt": "a"}, "got dict"), ("text", "got str"), (3, "got int")],
)
def test_rows_from_python_of_the_wrong_kind_are_refused(rows, words):
    with pytest.raises(DataError, match=words):
        rows_from_iterable(rows, origin="rows")
