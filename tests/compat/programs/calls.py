"""Requests that no command and no part of the SDK makes: `python calls.py <master> <password> <requests.json>`.

They go through the session of the published client, which adds what it adds to all its requests.
"""

import json
import pathlib
import sys

from determined.experimental import client

master, password, path = sys.argv[1:]
client.login(master=master, user="admin", password=password)
session = client._determined._session
for method, url, body in json.loads(pathlib.Path(path).read_text()):
    try:
        getattr(session, method.lower())(url, **({} if method == "GET" else {"json": body}))
        said = "ok"
    except Exception as error:  # noqa: BLE001 - whatever the client makes of an answer
        said = f"{type(error).__name__}: {error}"
    print(f"{method} {url}: {said}", flush=True)
