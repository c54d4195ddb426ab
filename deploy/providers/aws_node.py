#!/usr/bin/env python3
"""Launches and terminates nodes of a pool on EC2: its provider (docs/scheduling.md, README.md here).

    aws_node.py launch --region eu-central-1 --template undeterred-agent
    aws_node.py terminate --region eu-central-1

A node is an instance that carries the node's name as a tag. Run twice for a node, it finds what it did before.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import boto3

NODE, POOL, SLOTS = "undeterred-node", "undeterred-pool", "undeterred-slots"
#: Of instances that cost something, or are about to.
_THERE = ["pending", "running", "stopping", "stopped", "shutting-down"]


def launch(ec2: Any, template: str, node: str, pool: str, slots: str) -> None:
    """Have the node's instance started, unless it is there. Its template says what it is, and what it runs."""
    if any(state != "shutting-down" for _, state in _instances(ec2, node)):
        return
    tags = {NODE: node, POOL: pool, SLOTS: slots, "Name": node}
    ec2.run_instances(
        LaunchTemplate={"LaunchTemplateName": template},
        MinCount=1,
        MaxCount=1,
        # asked again before the first answer was there, EC2 answers with the same instance
        ClientToken=hashlib.sha256(node.encode()).hexdigest(),
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        ],
    )


def terminate(ec2: Any, node: str) -> None:
    """Have all of the node's instances end; none is as well."""
    if found := [instance for instance, _ in _instances(ec2, node)]:
        ec2.terminate_instances(InstanceIds=found)


def _instances(ec2: Any, node: str) -> Iterator[tuple[str, str]]:
    filters = [{"Name": f"tag:{NODE}", "Values": [node]}, {"Name": "instance-state-name", "Values": _THERE}]
    for page in ec2.get_paginator("describe_instances").paginate(Filters=filters):
        for reservation in page["Reservations"]:
            for instance in reservation["Instances"]:
                yield instance["InstanceId"], instance["State"]["Name"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Launches and terminates nodes on EC2.")
    parser.add_argument("action", choices=["launch", "terminate"])
    parser.add_argument("--region", required=True)
    parser.add_argument("--template", help="name of the launch template; for launch")
    wanted = parser.parse_args(arguments)
    if wanted.action == "launch" and not wanted.template:
        parser.error("--template: expected the name of a launch template")
    ec2 = boto3.client("ec2", region_name=wanted.region)
    node = os.environ["UNDETERRED_NODE"]
    if wanted.action == "terminate":
        terminate(ec2, node)
    else:
        launch(ec2, wanted.template, node, os.environ["UNDETERRED_POOL"], os.environ["UNDETERRED_SLOTS"])


if __name__ == "__main__":
    main()
