"""Write secrets of Google's Secret Manager into files: `secrets_gcp.py FOLDER PROJECT NAME=SECRET …`."""

import base64
import os
import shutil
import sys

import google.auth
from google.auth.transport.requests import AuthorizedSession

folder, project, *words = sys.argv[1:]
credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
session = AuthorizedSession(credentials)
os.makedirs(folder, mode=0o711, exist_ok=True)
for word in words:
    name, _, secret = word.partition("=")
    url = f"https://secretmanager.googleapis.com/v1/projects/{project}/secrets/{secret}/versions/latest:access"
    response = session.get(url, timeout=30)
    response.raise_for_status()
    text = base64.b64decode(response.json()["payload"]["data"]).decode()
    path = os.path.join(folder, name)
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o400), "w") as file:
        file.write(text.strip())
    shutil.chown(path + ".new", "undeterred", "undeterred")
    os.replace(path + ".new", path)
