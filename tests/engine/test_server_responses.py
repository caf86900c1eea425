"""POST /v1/responses: replies, continuations, sessions, paging, storing."""

from typing import Any

import pytest
from fake_engine import Misbehaviour
from server_harness import OTHER, SESSION, Served, tiny_model

SID = {"x-ninfer-session": SESSION}


def tokens_of(served: Served, response_id: str, session: str | None = None) -> tuple[int, ...]:
    record = served.engine.responses.get(response_id, session)
    assert record is not None
    return tuple(record.tokens)


def test_a_reply_has_the_shape_that_probes_rely_on(served: Served) -> None:
    served.says.text = "the answer"
    reply = served.create("a question", max_output_tokens=40, temperature=0)
    assert reply["id"].startswith("resp_")
    assert (reply["object"], reply["status"]) == ("response", "completed")
    [item] = reply["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert [(part["type"], part["text"]) for part in item["content"]] == [("output_text", "the answer")]
    usage, ninfer = reply["usage"], reply["ninfer"]
    assert usage["input_tokens_details"] == {"cached_tokens": 0}
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert ninfer["reused_tokens"] + ninfer["computed_tokens"] == usage["input_tokens"]
    assert (ninfer["path"], ninfer["miss_reason"]) == ("root", "never_seen")


def test_a_reply_cut_by_its_limit_is_incomplete_and_can_be_continued(served: Served) -> None:
    served.says.text = "a reply of several words"
    first = served.create(max_output_tokens=2)
    assert first["status"] == "incomplete"
    assert first["incomplete_details"] == {"reason": "max_output_tokens"}
    child = served.create("go on", previous_response_id=first["id"])
    chat, encode = served.model.chat, served.model.tokenizer.encode
    turn = encode(chat.continuation([{"role": "user", "content": "go on"}], False))
    assert turn[:1] == list(served.model.eos_token_ids)
    expected = (*tokens_of(served, first["id"]), *turn)
    assert served.engine.requests[-1].tokens == expected
    assert child["usage"]["input_tokens"] == len(expected)


def test_a_child_reads_exactly_its_parents_tokens_and_then_the_new_turn(served: Served) -> None:
    # The reply is sampled one byte a token, as no tokenizer would encode it: rendering anew would change its ids.
    text = "one all can will"
    served.says.turns.clear()
    served.engine.script = lambda _request: [*text.encode(), *served.model.eos_token_ids]
    parent = served.create("hello")
    assert parent["output"][0]["content"][0]["text"] == text
    served.create("and then", previous_response_id=parent["id"])
    prompt = served.engine.requests[-1].tokens
    kept = tokens_of(served, parent["id"])
    assert prompt[: len(kept)] == kept
    assert kept[-len(text) - 1 : -1] == tuple(text.encode())
    assert list(prompt[len(kept) : len(kept) + 1]) != list(served.model.eos_token_ids), "end of turn is said once"
    whole = served.model.chat.render(
        [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": text},
            {"role": "user", "content": "and then"},
        ]
    )
    stream = served.model.tokenizer.stream(skip_special=False)
    assert "".join(stream.add(token) for token in prompt) + stream.finish() == whole


def test_ten_forks_of_one_parent_share_its_tokens_and_differ_after_them(served: Served) -> None:
    base = served.create("template", ninfer_session=SESSION)
    kept = tokens_of(served, base["id"], SESSION)
    forks = [served.create(f"fork {n}", previous_response_id=base["id"], ninfer_session=SESSION) for n in range(10)]
    prompts = [request.tokens for request in served.engine.requests[1:]]
    assert {prompt[: len(kept)] for prompt in prompts} == {kept}
    assert len(set(prompts)) == 10
    assert [fork["ninfer"]["path"] for fork in forks] == ["private_endpoint"] + ["private_long_anchor"] * 9
    assert all(fork["usage"]["input_tokens_details"]["cached_tokens"] == len(kept) - 1 for fork in forks)
    assert {request.parent_response_id for request in served.engine.requests[1:]} == {base["id"]}


def test_the_status_already_tells_of_a_request_when_its_reply_arrives(served: Served) -> None:
    base = served.create("template")
    fork = served.create("fork", previous_response_id=base["id"])
    status = served.http.get("/v1/ninfer/status").json()
    selection = {key: fork["ninfer"][key] for key in ("path", "frontier_tokens")}
    assert status["cache"]["last_selection"] == selection


def test_input_tokens_counts_what_a_create_of_the_same_body_would_have(served: Served) -> None:
    parent = served.create("template", instructions="be brief")
    bodies: list[dict[str, Any]] = [
        {"input": "alone"},
        {"input": "child", "previous_response_id": parent["id"]},
        {"input": "child", "previous_response_id": parent["id"], "instructions": "be long"},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], "instructions": "i"},
    ]
    for body in bodies:
        counted = served.post("/v1/responses/input_tokens", **body)
        assert counted["object"] == "response.input_tokens"
        assert counted["input_tokens"] == served.post("/v1/responses", **body)["usage"]["input_tokens"]


def test_instructions_and_tools_of_the_parent_go_on_when_a_child_names_none(served: Served) -> None:
    tool = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
    parent = served.create("q", instructions="be brief", tools=[tool])
    kept = tokens_of(served, parent["id"])
    for fields in ({}, {"instructions": "be brief"}, {"tools": [tool]}):
        child = served.create("next", previous_response_id=parent["id"], **fields)
        assert served.engine.requests[-1].tokens[: len(kept)] == kept
        assert (child["instructions"], child["tools"][0]["name"]) == ("be brief", "add")


def test_other_instructions_on_a_child_render_the_conversation_anew(served: Served) -> None:
    served.says.text = "answer one"
    first = served.create("question one", instructions="old")
    second = served.create("question two", previous_response_id=first["id"])
    served.create("question three", previous_response_id=second["id"], instructions="new")
    said = {"role": "assistant", "content": "answer one"}
    whole = served.model.chat.render(
        [
            {"role": "system", "content": "new"},
            {"role": "user", "content": "question one"}, said,
            {"role": "user", "content": "question two"}, said,
            {"role": "user", "content": "question three"},
        ]
    )
    assert list(served.engine.requests[-1].tokens) == served.model.tokenizer.encode(whole)


def test_other_instructions_are_refused_when_an_ancestor_is_gone_but_a_plain_child_is_fine(served: Served) -> None:
    first = served.create("one")
    second = served.create("two", previous_response_id=first["id"])
    assert served.http.delete(f"/v1/responses/{first['id']}").json()["deleted"] is True
    assert served.engine.forgotten == [(first["id"], None)]
    served.create("three", previous_response_id=second["id"])
    error = served.create("three", 400, previous_response_id=second["id"], instructions="new")["error"]
    assert (error["code"], error["param"]) == ("invalid_request", "instructions")
    gone = served.create("three", 404, previous_response_id=first["id"])["error"]
    assert gone["code"] == "previous_response_not_found"


def test_a_response_that_was_not_stored_cannot_be_read_or_continued(served: Served) -> None:
    reply = served.create(store=False)
    assert served.http.get(f"/v1/responses/{reply['id']}").json()["error"]["code"] == "response_not_found"
    error = served.create("hello", 404, previous_response_id=reply["id"])["error"]
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    assert served.engine.requests[0].store is False


def test_a_stored_response_reads_as_it_was_sent(served: Served) -> None:
    reply = served.create(metadata={"a": "b"}, user="u")
    assert served.http.get(f"/v1/responses/{reply['id']}").json() == reply


@pytest.mark.parametrize("foreign", [{}, {"x-ninfer-session": OTHER}])
def test_a_response_of_a_session_does_not_exist_for_anyone_else(served: Served, foreign: dict[str, str]) -> None:
    reply = served.create(ninfer_session=SESSION)
    url = f"/v1/responses/{reply['id']}"
    for method, path in [("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")]:
        assert served.http.request(method, url + path, headers=foreign).status_code == 404
    body = {"input": "x", "previous_response_id": reply["id"]}
    assert served.post("/v1/responses", 404, foreign, **body)["error"]["code"] == "previous_response_not_found"
    assert served.http.get(url, headers=SID).json() == reply
    served.post("/v1/responses", 200, SID, **body)


def test_a_missing_parent_brings_its_session_back_once(served: Served) -> None:
    base = served.create("template", ninfer_session=SESSION)
    served.http.post("/v1/ninfer/checkpoints", json={"session_sha256": SESSION}).raise_for_status()
    served.engine.responses.__init__(10)  # type: ignore[misc]  # what a restart leaves: nothing in memory
    body = {"input": "x", "previous_response_id": base["id"], "ninfer_session": SESSION}
    counted = served.post("/v1/responses/input_tokens", **body)
    child = served.post("/v1/responses", **body)
    assert child["usage"]["input_tokens"] == counted["input_tokens"]
    assert served.engine.restores == [SESSION]


def test_a_restore_that_fails_is_the_ordinary_404(served: Served) -> None:
    served.engine.misbehaviour = Misbehaviour.CANNOT_RESTORE
    error = served.create("hello", 404, previous_response_id="resp_gone", ninfer_session=SESSION)["error"]
    assert error["code"] == "previous_response_not_found"
    assert served.engine.restores == [SESSION]


def test_a_missing_parent_without_a_session_restores_nothing(served: Served) -> None:
    served.create("hello", 404, previous_response_id="resp_gone")
    assert served.engine.restores == []


def test_input_items_are_paged_in_both_orders(served: Served) -> None:
    items = [{"role": "user", "content": f"part {n}"} for n in range(5)]
    url = f"/v1/responses/{served.create(items)['id']}/input_items"
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = served.http.get(url, params={"order": "asc", "limit": "2", **after}).json()
        assert page["object"] == "list"
        seen += [item["content"][0]["text"] for item in page["data"]]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert seen == [f"part {n}" for n in range(5)]
    newest = served.http.get(url).json()
    assert [item["content"][0]["text"] for item in newest["data"]] == seen[::-1]
    assert newest["has_more"] is False


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("limit=1&limit=2", "limit"),
     ("order=up", "order"), ("after=msg_none", "after"), ("include=x", "include")],
)
def test_bad_paging_is_refused_by_name(served: Served, query: str, param: str) -> None:
    reply = served.http.get(f"/v1/responses/{served.create()['id']}/input_items?{query}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_the_clients_request_id_is_used_everywhere(served: Served) -> None:
    asked = "c" * 64
    reply = served.http.post("/v1/responses", json={"model": "tiny", "input": "x", "ninfer_request_id": asked})
    assert reply.headers["x-request-id"] == asked
    assert reply.json()["ninfer"]["request_id"] == asked
    assert served.engine.requests[0].request_id == asked
    assert {line["request_id"] for line in served.lines() if line["event"].startswith("request_")} == {asked}


def test_a_tool_call_becomes_a_function_call_item_and_its_output_continues_it(served: Served) -> None:
    tool = {"type": "function", "name": "add", "description": "adds", "parameters": {"type": "object"}}
    served.says.text = 'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    parent = served.create("1+1?", tools=[tool])
    message, call = parent["output"]
    assert message["content"][0]["text"] == "Let me see."
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "add", '{"a": 1}')
    served.says.text = "2"
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "2"}
    served.create([output], previous_response_id=parent["id"])
    served.create([output], 400)
    error = served.create([{**output, "call_id": "call_x"}], 400, previous_response_id=parent["id"])["error"]
    assert error["param"] == "input[0].call_id"


def test_reasoning_becomes_an_item_of_its_own_and_is_counted(served: Served) -> None:
    served.says.text = "<think>\nhm, so\n</think>\n\nyes"
    reply = served.create()
    reasoning, message = reply["output"]
    assert (reasoning["type"], reasoning["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "hm, so"}])
    assert message["content"][0]["text"] == "yes"
    inside = len(tiny_model().tokenizer.encode("\nhm, so\n</think>"))
    assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] == inside


def test_an_empty_reply_is_an_empty_message(served: Served) -> None:
    served.says.text = ""
    [item] = served.create()["output"]
    assert (item["status"], item["content"][0]["text"]) == ("completed", "")


def test_a_token_that_the_tokenizer_does_not_know_is_no_fault(served: Served) -> None:
    served.engine.script = lambda _request: [99_999, *served.model.eos_token_ids]
    assert served.create()["output"][0]["content"][0]["text"] == "\ufffd"


def test_input_items_of_every_kind_become_one_conversation(served: Served) -> None:
    served.create(
        [
            {"role": "developer", "content": "rules"},
            {"role": "user", "content": [{"type": "input_text", "text": "1+1?"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "add"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
        ],
        instructions="first",
    )
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    whole = served.model.chat.render(
        [
            {"role": "system", "content": "first\n\nrules"},
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "I add.", "reasoning_content": "add", "tool_calls": [call]},
            {"role": "tool", "content": "2"},
        ]
    )
    assert list(served.engine.requests[-1].tokens) == served.model.tokenizer.encode(whole)
