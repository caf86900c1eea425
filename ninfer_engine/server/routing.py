"""From a request's method and path to its route, in one look-up where the path has no parameters."""

from collections.abc import Sequence

from starlette.routing import Match, Route
from starlette.types import Scope

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.server.errors import ApiError


class Router:
    """Finds routes. Of two that match, one without parameters goes first, then the earlier one."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._exact = {(method, route.path): route
                       for route in reversed(routes) if "{" not in route.path for method in route.methods or ()}
        self._methods: dict[str, set[str]] = {}
        for method, path in self._exact:
            self._methods.setdefault(path, set()).add(method)
        self._patterns = [route for route in routes if "{" in route.path]

    def find(self, scope: Scope) -> Route:
        """The route of a request, whose path parameters it puts into the scope. Raises not_found and
        method_not_allowed with our body."""
        exact = self._exact.get((scope["method"], scope["path"]))
        if exact is not None:
            scope["path_params"] = {}
            return exact
        allowed = set(self._methods.get(scope["path"], ()))
        for route in self._patterns:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return route
            if match is Match.PARTIAL:
                allowed |= route.methods or set()
        if allowed:
            methods = sorted(allowed)
            raise ApiError(ErrorCode.METHOD_NOT_ALLOWED,
                           f"{scope['method'][:16]} is not allowed here; {', '.join(methods)} is", allow=methods)
        raise ApiError(ErrorCode.NOT_FOUND, "there is no such route")
