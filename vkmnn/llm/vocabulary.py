"""Tokenizers from the vocabulary of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.config_file import Section
from vkmnn.base.extras import need
from vkmnn.errors import ModelFileError

_CONTROL, _OWN, _BYTE = 3, 4, 6  # of tokenizer.ggml.token_type
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_LONGEST = 256
"""Characters of the longest piece whose halves are looked up."""

_ENDINGS = "'s|'t|'re|'ve|'m|'ll|'d"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT2 = rf"{_ENDINGS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    """Return the pattern of cl100k and similar, by how many digits stay together."""
    return (rf"(?i:{_ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}|"
            rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}")  # fmt: skip


def _cased(digits: str, endings: str) -> str:
    """Return the pattern of o200k and similar, which also splits before capitals."""
    first = r"[^\r\n\p{L}\p{N}]?"
    return (rf"{first}{_UPPER}*{_LOWER}+{endings}|{first}{_UPPER}+{_LOWER}*{endings}|"
            rf"\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}")  # fmt: skip


_PLAIN, _QWEN = _words("{1,3}"), _words("")
_DIGIT = r"\p{N}"
_SENTENCES = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_SIGNS = r"[!-/:-@\[-`{-~]"
_DEEPSEEK = (rf"{_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+|"
             rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_REST}")  # fmt: skip
_SEED = _QWEN.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
_BAILING = _QWEN.replace(r"\s*[\r\n]+", r"\s*[\r\n]")
PATTERNS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        (
            "gpt-2",
            "default",
            "phi-2",
            "olmo",
            "jais",
            "mpt",
            "trillion",
            "gigachat",
            "mellum",
            "a.x-4.0",
            "granite-docling",
        ),
        (_GPT2,),
    ),
    **dict.fromkeys(
        (
            "llama-bpe",
            "llama3",
            "llama-v3",
            "dbrx",
            "smaug-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "chatglm-bpe",
            "glm4",
        ),
        (_PLAIN,),
    ),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "grok-2", "solar-open"),
        (_QWEN,),
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        (_DIGIT, _GPT2),
    ),
    "tekken": (_cased("", ""),),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), (_cased("{1,3}", f"(?i:{_ENDINGS})?"),)),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), (_SENTENCES,)),
    "viking": (_SENTENCES, _DIGIT),
    "falcon": (r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense"),
        (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK),
    ),
    "seed-coder": (_SEED,),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), (_BAILING,)),
}
"""How texts are split before pairs are merged, by `tokenizer.ggml.pre`: one split after the
other.
"""

_BEGINS = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken", "falcon3", "falcon-h1", "pixtral",
                     "midm-2.0", "lfm2"})  # fmt: skip
"""Texts begin with a special token, unless the file says otherwise."""
_WHOLE_WORDS = _BEGINS
"""Words in the vocabulary are tokens, whatever the merges."""

_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
         "<|return|>", "<|call|>", "<EOT>", "_<EOT>")  # fmt: skip
"""Control tokens that end a text if the file names none."""


def begin_of(keys: Mapping[str, Any]) -> int | None:
    """Return the token that a text begins with, if any."""
    found = keys.get("tokenizer.ggml.bos_token_id")
    return found if type(found) is int else None


def ends_of(keys: Mapping[str, Any]) -> frozenset[int]:
    """Return the tokens that end a text."""
    found = {keys.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")}
    tokens, kinds = keys.get("tokenizer.ggml.tokens"), keys.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(kinds, np.ndarray) and len(kinds) == len(tokens):
        wanted = set(_ENDS)
        found |= {n for n, text in enumerate(tokens) if text in wanted and kinds[n] == _CONTROL}
    return frozenset(one for one in found if type(one) is int and one >= 0)


def has_vocabulary(keys: Mapping[str, Any]) -> bool:
    """Return whether a file says how texts become tokens."""
    return isinstance(keys.get("tokenizer.ggml.tokens"), list)


def read_vocabulary(path: Path, keys: Mapping[str, Any]) -> tuple[Any, Section]:
    """Return a `tokenizers.Tokenizer`, and the equivalent of tokenizer_config.json.

    Raises:
        ModelFileError: the vocabulary is damaged, or of an unknown kind.
        MissingExtraError: `tokenizers` is not installed.
    """
    return _Vocabulary(path, keys).read()


class _Vocabulary:
    def __init__(self, path: Path, keys: Mapping[str, Any]) -> None:
        self._path, self._keys = path, keys
        tokens = keys.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or not tokens:
            raise self._wrong("tokens", "has no tokens")
        self._tokens: list[str] = tokens
        kinds = keys.get("tokenizer.ggml.token_type")
        if not isinstance(kinds, np.ndarray):
            kinds = np.ones(len(tokens), np.int32)
        if len(kinds) != len(tokens):
            raise self._wrong("token_type", "is not as long as the tokens")
        self._kinds = kinds

    def _wrong(self, key: str, what: str) -> ModelFileError:
        return ModelFileError(
            f"the vocabulary in '{self._path}' {what} (tokenizer.ggml.{key})",
            hint="pass tokens instead of text, or load the folder that the file was made from",
        )

    def _text(self, key: str) -> str:
        found = self._keys.get(f"tokenizer.ggml.{key}", "")
        return found if isinstance(found, str) else ""

    def read(self) -> tuple[Any, Section]:
        tokenizers = need("tokenizers", "reading tokens")
        kind = self._text("model")
        readers = {"gpt2": self._pairs, "llama": self._pieces}
        if kind not in readers:
            raise self._wrong("model", f"is of the kind '{kind[:60]}', which is not known")
        try:
            made = readers[kind](tokenizers)
            self._add_own(made, tokenizers)
            self._add_begin(made, tokenizers)
        except ModelFileError:
            raise
        except Exception as error:  # the package's, which has no error class
            raise self._wrong("tokens", f"cannot be read: {error}") from error
        special = {f"{name}_token": self._special(name) for name in ("bos", "eos")}
        template = self._keys.get("tokenizer.chat_template", "")
        return made, Section(self._path, {**special, "chat_template": template})

    def _special(self, name: str) -> str:
        number = self._keys.get(f"tokenizer.ggml.{name}_token_id")
        if type(number) is not int or not 0 <= number < len(self._tokens):
            return ""
        return self._tokens[number]

    def _numbered(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self._tokens)}

    def _pairs(self, tokenizers: Any) -> Any:
        """Return a tokenizer of GPT-2's kind: bytes as letters, merged in order."""
        pre = self._text("pre") or "default"
        if pre not in PATTERNS:
            raise self._wrong("pre", f"splits texts by '{pre[:60]}', which is not known")
        merges = self._keys.get("tokenizer.ggml.merges")
        if not isinstance(merges, list):
            raise self._wrong("merges", "has no merges")
        split = [tuple(one.split(" ")) for one in merges]
        if any(len(one) != 2 for one in split):
            raise self._wrong("merges", "has merges that are not pairs")
        whole = pre in _WHOLE_WORDS
        made = tokenizers.Tokenizer(
            tokenizers.models.BPE(vocab=self._numbered(), merges=split, ignore_merges=whole)
        )
        cuts = [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(one), "isolated", invert=False)
            for one in PATTERNS[pre]
        ]
        letters = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*cuts, letters])
        made.decoder = tokenizers.decoders.ByteLevel()
        return made

    def _pieces(self, tokenizers: Any) -> Any:
        """Return a tokenizer like SentencePiece's: scored pieces, and bytes for the rest."""
        scores = self._keys.get("tokenizer.ggml.scores")
        if not isinstance(scores, np.ndarray) or len(scores) != len(self._tokens):
            raise self._wrong("scores", "has no score for each token")
        vocabulary = self._numbered()
        unknown = self._keys.get("tokenizer.ggml.unknown_token_id", 0)
        known = type(unknown) is int and 0 <= unknown < len(self._tokens)
        made = tokenizers.Tokenizer(
            tokenizers.models.BPE(
                vocab=vocabulary,
                merges=_merges(self._tokens, scores, vocabulary),
                unk_token=self._tokens[unknown] if known else None,
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        prefixed = self._keys.get("tokenizer.ggml.add_space_prefix", True) is True
        first = [tokenizers.normalizers.Prepend(_SPACE)] if prefixed else []
        made.normalizer = tokenizers.normalizers.Sequence(
            [*first, tokenizers.normalizers.Replace(" ", _SPACE)]
        )
        last = [tokenizers.decoders.Strip(" ", 1, 0)] if prefixed else []
        made.decoder = tokenizers.decoders.Sequence(
            [
                tokenizers.decoders.Replace(_SPACE, " "),
                tokenizers.decoders.ByteFallback(),
                tokenizers.decoders.Fuse(),
                *last,
            ]
        )
        return made

    def _add_own(self, made: Any, tokenizers: Any) -> None:
        """Add tokens that are never split; control tokens are not text."""
        for kind, add in ((_CONTROL, made.add_special_tokens), (_OWN, made.add_tokens)):
            numbers = np.flatnonzero(self._kinds == kind)
            add([
                tokenizers.AddedToken(self._tokens[n], normalized=False, special=kind == _CONTROL)
                for n in numbers if self._tokens[n]
            ])  # fmt: skip

    def _add_begin(self, made: Any, tokenizers: Any) -> None:
        """Begin texts with a token if the model's do."""
        usual = self._text("model") == "llama" or self._text("pre") in _BEGINS
        wanted = self._keys.get("tokenizer.ggml.add_bos_token", usual)
        text, number = self._special("bos"), begin_of(self._keys)
        if wanted is not True or not text:
            return

        made.post_processor = tokenizers.processors.TemplateProcessing(
            single=[text, "$A"], pair=[text, "$A", "$B"], special_tokens=[(text, number)]
        )


def _merges(
    tokens: Sequence[str], scores: Any, vocabulary: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Return pairs of pieces that form a piece, those with the best scores first."""
    found: list[tuple[float, int, int, str, str]] = []
    for number, text in enumerate(tokens):
        if not 1 < len(text) <= _LONGEST:
            continue
        score = -float(scores[number])
        for at in range(1, len(text)):
            left = vocabulary.get(text[:at])
            right = vocabulary.get(text[at:]) if left is not None else None
            if left is not None and right is not None:
                found.append((score, left, right, text[:at], text[at:]))
    found.sort()
    return [(left, right) for *_, left, right in found]
