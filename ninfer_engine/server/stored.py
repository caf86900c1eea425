"""Stored responses: read, delete, page through their input, cancel one in the making."""

from starlette.requests import Request
from starlette.responses import Response

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.runtime.responses import StoredResponse
from ninfer_engine.server.body import query_values
from ninfer_engine.server.context import context
from ninfer_engine.server.errors import ApiError, invalid
from ninfer_engine.server.identity import header_session
from ninfer_engine.server.json_reply import JsonReply
from ninfer_engine.server.runs import EndedBy


async def get_response(request: Request) -> Response:
    """The response as it was sent."""
    query_values(request, frozenset())
    return JsonReply(_stored(request).body)


async def delete_response(request: Request) -> Response:
    """Forget a response for good; its descendants stay usable."""
    ctx, response_id = context(request), request.path_params["response_id"]
    if not ctx.engine.responses.delete(response_id, header_session(request)):
        raise _not_found()
    await ctx.engine.forget_response(response_id, header_session(request))
    return JsonReply({"id": response_id, "object": "response", "deleted": True})


async def list_input_items(request: Request) -> Response:
    """The items of this request's input, a page at a time, newest first unless `order=asc`."""
    query = query_values(request, frozenset({"after", "limit", "order"}))
    items = list(_stored(request).input_items)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order is asc or desc", "order")
    if order == "desc":
        items.reverse()
    limit = query.get("limit", "20")
    if not limit.isascii() or not limit.isdigit() or len(limit) > 3 or not 1 <= int(limit) <= 100:
        raise invalid("limit is a number from 1 to 100", "limit")
    ids = [item["id"] for item in items]
    start = 0
    if "after" in query:
        if query["after"] not in ids:
            raise invalid("after is not the id of an input item of this response", "after")
        start = ids.index(query["after"]) + 1
    page = items[start : start + int(limit)]
    return JsonReply({
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + len(page) < len(items),
    })


async def cancel_response(request: Request) -> Response:
    """End a response in the making, and return it as far as it came; one that is complete is returned as it is."""
    ctx, response_id = context(request), request.path_params["response_id"]
    run = ctx.runs.of_response(response_id, header_session(request))
    if run is None:
        return JsonReply(_stored(request).body)
    run.cancel(EndedBy.CANCELLED)
    return JsonReply({**(run.response or {}), "status": "cancelled"})


def _stored(request: Request) -> StoredResponse:
    found = context(request).engine.responses.get(request.path_params["response_id"], header_session(request))
    if found is None:
        raise _not_found()
    return found


def _not_found() -> ApiError:
    return ApiError(ErrorCode.RESPONSE_NOT_FOUND, "there is no such stored response", "response_id")
