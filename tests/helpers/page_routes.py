"""The routes of the page, from the code, and the fields that each reads: of a query, or of a JSON body."""

from regard.serve.live import LiveRoutes

FIELDS: dict[str, tuple[str, ...]] = {
    "/": (),
    "/page/{name}": (),
    "/api/trace": (
        *("input", "answer", "layers", "picture", "checkpoint", "model", "ids", "written", "changes"),
    ),
    "/api/ask": ("input", "checkpoint", "model"),
    "/api/talk": ("turns", "checkpoint", "model"),
    "/api/tensor": ("trace", "name", "head", "rows", "columns", "most", "as"),
    "/api/words": ("trace", "ids"),
    "/api/tree": ("trace", "beams"),
    "/api/lens": ("trace", "row"),
    "/api/heads": ("trace",),
    "/api/attribution": ("trace", "row", "token"),
    "/api/models": (),
    "/api/space": ("trace", "name"),
    "/api/near": ("trace", "name", "row", "text", "distance"),
    "/api/change": ("trace", "row", "changes", "lenient"),
    "/api/effects": ("trace", "stream"),
    "/api/versus": ("trace", "other", "row", "other_row"),
    "/api/log": ("trace",),
    "/api/progress": ("trace",),
    "/api/page": ("trace",),
    "/api/training": ("pause", "rate"),  # of a run that is trained
}


def page_routes() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The method and the fields of each route; KeyError if the code has one that is not in FIELDS."""
    routes = LiveRoutes.routes(LiveRoutes.__new__(LiveRoutes))
    methods = {route.path: "POST" if "POST" in (route.methods or ()) else "GET" for route in routes}
    assert methods.keys() >= FIELDS.keys(), "routes that are gone"
    return {path: (method, FIELDS[path]) for path, method in methods.items()}
