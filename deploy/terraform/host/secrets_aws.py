"""Write secrets of AWS Secrets Manager into files: `secrets_aws.py FOLDER REGION NAME=SECRET_ID …`."""

import os
import shutil
import sys

import boto3

folder, region, *words = sys.argv[1:]
client = boto3.client("secretsmanager", region_name=region)
os.makedirs(folder, mode=0o711, exist_ok=True)
for word in words:
    name, _, secret = word.partition("=")
    text = client.get_secret_value(SecretId=secret)["SecretString"]
    path = os.path.join(folder, name)
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o400), "w") as file:
        file.write(text.strip())
    shutil.chown(path + ".new", "undeterred", "undeterred")
    os.replace(path + ".new", path)
