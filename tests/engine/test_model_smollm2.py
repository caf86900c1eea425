"""SmolLM2-135M-Instruct, a real model in a GGUF file: it answers, and agrees with llama.cpp and transformers."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest
import torch
import transformers
from gguf_cases import llama_cpp
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from model_cases import Run
from smollm2_cases import NEEDS_SMOLLM2, file, served
from template_cases import CONVERSATIONS

from ninfer_engine.model.gguf_file import GgufFile
from ninfer_engine.model.loader import LoadedModel, load_model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TEXTS = [
    "What is the capital of France?", "  two  spaces\n\n\tand a tab ", "It's 12345 o'clock, they'll say we've won!",
    "def f(x):\n    return x ** 2  # ok\n", "\u00fcber Stra\u00dfe \u2014 \u6771\u4eac \U0001f600\u200d\U0001f680",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "3.14159 + 2e10 = ?", "\u0645\u0631\u062d\u0628\u0627",
]


pytestmark = NEEDS_SMOLLM2


@cache
def model() -> LoadedModel:
    return load_model(file())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as address:
        yield address


def chat(url: str, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    body = {"model": "smollm2", "messages": messages, "max_tokens": 24, "temperature": 0} | fields
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    found: dict[str, Any] = reply.raise_for_status().json()
    return found


def test_it_answers_a_question_and_one_that_refers_to_it(url: str) -> None:
    first = chat(url, QUESTION)["choices"][0]
    assert "Paris" in first["message"]["content"]
    assert first["finish_reason"] == "stop"
    more = [*QUESTION, {"role": "assistant", "content": first["message"]["content"]},
            {"role": "user", "content": "And of Italy?"}]
    second = chat(url, more)
    assert "Rome" in second["choices"][0]["message"]["content"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_sampled_answers_stay_sensible_and_repeat_with_their_seed(url: str) -> None:
    def answer(seed: int) -> str:
        # The likeliest first tokens are "The" and "L" (15% less likely): min_p leaves only near ties.
        fields = {"temperature": 0.5, "min_p": 0.9, "seed": seed}
        said: str = chat(url, QUESTION, **fields)["choices"][0]["message"]["content"]
        return said

    answers = [answer(seed) for seed in range(5)]
    assert [answer(seed) for seed in range(2)] == answers[:2]
    assert all("Paris" in said for said in answers), answers


@pytest.mark.parametrize("conversation", ["one question", "system first", "several turns"])
@pytest.mark.parametrize("prompt", [True, False])
def test_its_template_renders_as_transformers_does(conversation: str, prompt: bool) -> None:
    source = GgufFile(file()).need("tokenizer.chat_template")
    peer = transformers.PreTrainedTokenizerFast(tokenizer_object=model().tokenizer._hf)
    expected = peer.apply_chat_template(CONVERSATIONS[conversation], chat_template=source, tokenize=False,
                                        add_generation_prompt=prompt)
    assert model().chat.render(CONVERSATIONS[conversation], None, prompt) == expected


def test_llama_cpp_cuts_text_into_the_same_tokens_and_predicts_alike() -> None:
    prompt = model().tokenizer.encode(model().chat.render(QUESTION))
    with llama_cpp(file()) as ask:
        for text in TEXTS:
            assert ask({"text": text})["tokens"] == model().tokenizer.encode(text)
        said = ask({"prompt": prompt, "count": 1, "top": 5})["logprobs"][0]
    logits = Run.new(model(), [0]).prefill(torch.tensor(prompt), [len(prompt)])
    ours = torch.log_softmax(logits, -1)
    for token, logprob in said:  # it rounds activations to eight bits, which moves a logarithm by 0.1 or 0.2
        assert float(ours[token]) == pytest.approx(logprob, abs=0.5)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.sampled_from(TEXTS))
def test_a_stream_never_hands_out_half_a_character(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    tokenizer, seen = model().tokenizer, ""
    # Its vocabulary lacks some bytes that text rarely has (control characters, planes 4 to 16), and drops them.
    assume(tokenizer.decode(tokenizer.encode(text), skip_special=False) == text)
    stream = tokenizer.stream(skip_special=False)
    for index in tokenizer.encode(text):
        seen += stream.add(index)
        assert text.startswith(seen)
    assert (seen, stream.finish()) == (text, "")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 49151), max_size=40))
def test_any_tokens_stream_to_the_text_of_all_of_them(ids: list[int]) -> None:
    stream = model().tokenizer.stream()
    pieces = [stream.add(index) for index in ids] + [stream.finish()]
    whole = b"".join(model().tokenizer.bytes_of(index) for index in ids if index not in model().tokenizer.special_ids)
    assert "".join(pieces) == whole.decode("utf-8", "replace")
