"""The program that gets nodes from EC2, against moto, which plays it: asking twice is asking once."""

from __future__ import annotations

import importlib.util
from typing import Any

import boto3
import pytest
from moto import mock_aws

from tests.deploy.programs import REPOSITORY

PATH = REPOSITORY / "deploy" / "providers" / "aws_node.py"
REGION = "eu-central-1"
LAUNCH = ["launch", "--region", REGION, "--template", "agent"]
TERMINATE = ["terminate", "--region", REGION]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("aws_node", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("UNDETERRED_POOL", "a100")
    monkeypatch.setenv("UNDETERRED_SLOTS", "8")
    return module


@mock_aws
def test_node_is_one_instance_until_it_is_terminated(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2 = boto3.client("ec2", region_name=REGION)
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    ec2.create_launch_template(LaunchTemplateName="agent", LaunchTemplateData={"ImageId": image})

    def there() -> list[dict[str, Any]]:
        found = [each for page in ec2.describe_instances()["Reservations"] for each in page["Instances"]]
        return [each for each in found if each["State"]["Name"] in ("pending", "running")]

    for node in ("a100-1", "a100-2", "a100-1"):
        monkeypatch.setenv("UNDETERRED_NODE", node)
        program.main(LAUNCH)
    assert len(there()) == 2
    tags = [{tag["Key"]: tag["Value"] for tag in each["Tags"]} for each in there()]
    wanted = {"undeterred-pool": "a100", "undeterred-slots": "8"}
    assert [tag | wanted for tag in tags] == tags
    for _ in range(2):
        program.main(TERMINATE)  # of the last one, a100-1
    [left] = there()
    assert {"Key": "undeterred-node", "Value": "a100-2"} in left["Tags"]


def test_launch_without_a_template_is_refused(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["launch", "--region", REGION])
    assert "--template: expected" in capsys.readouterr().err
