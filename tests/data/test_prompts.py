import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_tokenizers import CHAT_TEMPLATE, ids_of, word_tokenizer

from headrace.config.data import DataSection, FileSource
from headrace.data.prompts import build_prompt_sets
from headrace.errors import DataError

SOURCE = FileSource(path="unused.jsonl")
CHAT = word_tokenizer(adds="<s> $A", chat_template=CHAT_TEMPLATE)
WORDS_ONLY = word_tokenizer()
USER = {"role": "user", "content": "what is one plus two ?"}


def build(rows, *, tokenizer=None, seed=0, num_epochs=1, chat_template=None, **settings):
    section = DataSection(source=SOURCE, **{"shuffle": False, **settings})
    tokenizer = tokenizer or word_tokenizer(adds="<s> $A </s>")
    return build_prompt_sets(rows, section, tokenizer=tokenizer, seed=seed, num_epochs=num_epochs, chat_template=chat_template)


def first_ids(rows, **settings) -> tuple[int, ...]:
    prompt = build(rows, **settings).train.next_prompt()
    assert prompt is not None
    return prompt.token_ids


def test_bare_text_begins_once_and_does_not_end():
    assert first_ids([{"prompt": "hi there"}]) == ids_of("<s> hi there")
    assert first_ids([{"prompt": "<s> hi there"}]) == ids_of("<s> hi there")
    assert first_ids([{"prompt": "hi there"}], tokenizer=word_tokenizer()) == ids_of("hi there")


def test_a_rendered_chat_template_has_one_begin_of_text():
    assert first_ids([{"prompt": [USER]}], tokenizer=CHAT) == ids_of("<s> <user> what is one plus two ? </s> <assistant>")


def test_text_becomes_a_users_message_unless_it_is_to_stay_bare():
    assert first_ids([{"prompt": "hi"}], tokenizer=CHAT) == ids_of("<s> <user> hi </s> <assistant>")
    assert first_ids([{"prompt": "hi"}], tokenizer=CHAT, apply_chat_template=False) == ids_of("<s> hi")


def test_the_system_prompt_comes_first_and_shows_in_the_text_of_conversations():
    expected = ids_of("<s> <system> be brief </s> <user> hi </s> <assistant>")
    assert first_ids([{"prompt": "hi"}], tokenizer=CHAT, system_prompt="be brief") == expected
    prompts = build([{"prompt": [{"role": "user", "content": "hi"}]}], tokenizer=CHAT, system_prompt="be brief")
    prompt = prompts.train.get(epoch=0, row=0)
    assert prompt.token_ids == expected
    assert prompt.text == ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"})


def test_another_chat_template_may_be_given():
    template = "{% for message in messages %}{{ message.content }} {% endfor %}?"
    assert first_ids([{"prompt": [{"role": "user", "content": "hi"}]}], chat_template=template) == ids_of("hi ?")


def test_prompts_over_the_limit_are_left_out_and_counted():
    rows = [{"prompt": " ".join(["hi"] * length), "length": length} for length in (5, 50, 5000, 63, 64)]
    prompts = build(rows, max_prompt_length=64)  # one token more than words: <s>
    assert (prompts.num_rows, prompts.num_too_long, len(prompts.train)) == (5, 2, 3)
    drawn = [prompts.train.next_prompt() for _ in range(3)]
    assert [(prompt.row, prompt.columns, len(prompt.token_ids)) for prompt in drawn if prompt] == [
        (0, {"length": 5}, 6),
        (1, {"length": 50}, 51),
        (3, {"length": 63}, 64),
    ]
    assert prompts.train.next_prompt() is None


@given(
    lengths=st.lists(st.integers(1, 4), min_size=2, max_size=30),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_held_out_rows_are_exactly_as_many_as_asked_and_never_trained(lengths, seed, data):
    within = [row for row, length in enumerate(lengths) if length <= 3]
    assume(len(within) >= 2)
    held_out = data.draw(st.integers(0, len(within) - 1))
    rows = [{"prompt": " ".join(["hi"] * length)} for length in lengths]
    prompts = build(rows, tokenizer=WORDS_ONLY, seed=seed, held_out=held_out, max_prompt_length=3)
    kept_apart = [prompt.row for prompt in prompts.held_out]
    trained = []
    while (prompt := prompts.train.next_prompt()) is not None:
        trained.append(prompt.row)
    assert len(kept_apart) == held_out
    assert kept_apart == sorted(kept_apart)
    assert sorted(kept_apart + trained) == within


def test_the_held_out_rows_are_drawn_with_the_seed():
    rows = [{"prompt": "hi"} for _ in range(100)]
    drawn = [tuple(prompt.row for prompt in build(rows, held_out=10, seed=seed).held_out) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != tuple(range(10))


def test_many_rows_keep_their_own_tokens():
    rows = [{"prompt": "one " * (row % 7 + 1)} for row in range(9000)]
    prompts = build(rows, tokenizer=WORDS_ONLY)
    assert [len(prompts.train.get(epoch=0, row=row).token_ids) for row in range(9000)] == [row % 7 + 1 for row in range(9000)]


@pytest.mark.parametrize(
    ("rows", "settings", "words"),
    [
        ([{"prompt": [USER]}], {}, "no chat template; set model.chat_template"),
        ([{"prompt": "hi"}], {"system_prompt": "be brief"}, "data.system_prompt needs a chat template"),
        ([{"prompt": "hi hi"}, {"prompt": "hi hi hi"}], {"max_prompt_length": 2}, "all 2 prompts are longer.*3 to 4"),
        ([{"prompt": "hi"}, {"prompt": "hi hi hi"}], {"max_prompt_length": 2, "held_out": 1}, "only 1 of 2 prompts"),
        ([{"prompt": [USER]}], {"chat_template": "{{ raise_exception('no users here') }}"}, "no users here"),
        ([{"prompt": [USER]}], {"chat_template": " ", "tokenizer": word_tokenizer()}, "row 0.*has no tokens"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_one_line(rows, settings, words):
    with pytest.raises(DataError, match=words) as caught:
        build(rows, **settings)
    assert "\n" not in str(caught.value)
