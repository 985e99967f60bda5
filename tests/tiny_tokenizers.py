"""Tokenizers small enough to work out their ids by hand: a word is a token, words are split at white space."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<unk>", "<s>", "</s>", "<system>", "<user>", "<assistant>")
WORDS = ("what", "is", "one", "two", "plus", "?", "be", "brief", "hi", "there")
IDS = {word: number for number, word in enumerate(SPECIAL + WORDS)}

CHAT_TEMPLATE = (
    "<s>{% for message in messages %} <{{ message.role }}> {{ message.content }} </s>{% endfor %}"
    "{% if add_generation_prompt %} <assistant>{% endif %}"
)


def ids_of(text: str) -> tuple[int, ...]:
    """Ids of words with spaces between them."""
    return tuple(IDS.get(word, 0) for word in text.split())


def word_tokenizer(*, adds: str = "$A", chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """`adds` is what the tokenizer does to a text: `<s> $A` puts a begin-of-text token in front."""
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=adds, special_tokens=[("<s>", 1), ("</s>", 2)])
    tokenizer.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=chat_template
    )
