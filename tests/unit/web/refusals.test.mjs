// Run by test_page_modules.py: at which fields of a form a refusal is said.
import assert from "node:assert/strict";
import { test } from "node:test";
import { placed } from "../../../web/static/app/refusals.js";

test("a sentence is at the field that it begins with, however that is written", () => {
  const fields = ["name", "displayName", "agentUid", "resource_pool pool", "slots"];
  const at = (/** @type {string} */ message) => placed(message, fields);
  assert.deepEqual(at("name: '': expected 1 to 80 printable characters"), { at: { name: "'': expected 1 to 80 printable characters" }, rest: "" });
  assert.deepEqual(at("displayName 'x': expected fewer").at, { displayName: "'x': expected fewer" });
  assert.deepEqual(at("agentUserGroup.agent_uid: -1: expected 0 to 9").at, { agentUid: "-1: expected 0 to 9" });
  assert.deepEqual(at("resourcePool: 'p': there is none").at, { "resource_pool pool": "'p': there is none" });
  assert.deepEqual(at("group 'x' already exists").at, { name: "group 'x' already exists" });
});

test("several problems are at several fields, and what is about none of them is kept", () => {
  const found = placed("name: Field required, got {}; slots: too many; the body: Field required", ["name", "slots"]);
  assert.deepEqual(found, { at: { name: "Field required, got {}", slots: "too many" }, rest: "the body: Field required" });
  assert.deepEqual(placed("the API does not answer", ["name"]), { at: {}, rest: "the API does not answer" });
});

test("what is wrong with a configuration is at its part if the form has that, else at all of it", () => {
  const message = "invalid experiment configuration: version 0 experiment config is invalid: config is invalid: <config>.resources.slots: expected 1\n<config>.labels[0]: expected a text";
  assert.deepEqual(placed(message, ["slots", "config"]).at, { slots: "expected 1", config: "<config>.labels[0]: expected a text" });
  assert.equal(placed(message, ["overrideConfig"]).at.overrideConfig, message);
  assert.equal(placed(message, ["priority"]).rest, message.replace("\n", "; "));
});
