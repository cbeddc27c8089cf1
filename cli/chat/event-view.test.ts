import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { type Event, EventSchema, type Preview, PreviewSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { EventView } from "./event-view.ts";

function view(options: { showUser?: boolean; events?: "ends" | "work" | "all" } = {}) {
  let text = "";
  const shown = new EventView({
    write: (part) => {
      text += part;
    },
    showUser: false,
    events: "ends",
    colour: false,
    ...options,
  });
  return { shown, text: () => text };
}

function event(type: string, payload: object, id = "sevt_1"): Event {
  return create(EventSchema, { id, type, payload: JSON.stringify(payload) });
}

const message = (text: string, id?: string) =>
  event("agent.message", { content: [{ type: "text", text }] }, id);

function textPreview(text: string, eventId = "sevt_1"): Preview {
  return create(PreviewSchema, { kind: { case: "text", value: { eventId, index: 0, text } } });
}

function outputPreview(text: string, toolUseId = "sevt_1", offset = 0n): Preview {
  return create(PreviewSchema, { kind: { case: "output", value: { toolUseId, offset, text } } });
}

const result = (text: string, isError = false, toolUseId = "sevt_1") =>
  event(
    "agent.tool_result",
    { tool_use_id: toolUseId, content: [{ type: "text", text }], is_error: isError },
    "sevt_r",
  );

test("a message that was previewed is not written twice", () => {
  const { shown, text } = view();
  shown.preview(textPreview("Hello "));
  shown.preview(textPreview("you"));
  shown.event(message("Hello you"));
  expect(text()).toBe("Hello you\n");
});

test("a call on a hand that is not the default one is shown with its slot", () => {
  const { shown, text } = view();
  shown.event(event("agent.tool_use", { name: "bash", hand: "gpu", input: { command: "ls" } }));
  shown.event(event("agent.tool_use", { name: "bash", hand: "", input: { command: "ls" } }, "sevt_2"));
  expect(text()).toMatch(/● gpu__bash .*ls.*\n● bash .*ls/);
});

test("what previews left out is written when the event arrives (L5)", () => {
  const { shown, text } = view();
  shown.preview(textPreview("Hello "));
  shown.event(message("Hello you"));
  expect(text()).toBe("Hello you\n");
});

test("previews with a gap are followed by the whole text", () => {
  const { shown, text } = view();
  shown.preview(textPreview("Hlo"));
  shown.event(message("Hello you"));
  expect(text()).toBe("Hlo\nHello you\n");
});

test("a call shows its name, its command and its output once", () => {
  const { shown, text } = view();
  shown.event(event("agent.tool_use", { name: "bash", input: { command: "ls" } }));
  shown.preview(outputPreview("a\nb"));
  shown.preview(outputPreview("c\n"));
  shown.event(result("a\nbc\n"));
  expect(text()).toBe("● bash ls\n  │ a\n  │ bc\n");
});

test("outputs of two calls at once keep to lines of their own", () => {
  const { shown, text } = view();
  shown.preview(outputPreview("one", "sevt_a"));
  shown.preview(outputPreview("two", "sevt_b"));
  shown.event(result("one", false, "sevt_a"));
  shown.event(result("two!", false, "sevt_b"));
  expect(text()).toBe("  │ one\n  │ two\n  │ !\n");
});

test("outputs and results of calls at once say which call they belong to", () => {
  const { shown, text } = view();
  shown.event(event("agent.tool_use", { name: "bash", input: { command: "make a" } }, "sevt_a"));
  shown.event(event("agent.tool_use", { name: "bash", input: { command: "make b" } }, "sevt_b"));
  shown.preview(outputPreview("b1\n", "sevt_b"));
  shown.preview(outputPreview("b2\n", "sevt_b"));
  shown.preview(outputPreview("a1\n", "sevt_a"));
  shown.event(result("b1\nb2\n", true, "sevt_b"));
  shown.event(result("a1\na2\n", false, "sevt_a"));
  shown.event(event("agent.tool_use", { name: "bash", input: { command: "make c" } }, "sevt_c"));
  shown.event(result("c\n", false, "sevt_c"));
  expect(text().split("\n")).toEqual([
    "● bash make a",
    "● bash make b",
    "  ↳ bash make b",
    "  │ b1",
    "  │ b2",
    "  ↳ bash make a",
    "  │ a1",
    "  ↳ bash make b",
    "  ✗ the call failed",
    "  ↳ bash make a",
    "  │ a2",
    "● bash make c",
    "  │ c",
    "",
  ]);
});

test("one session shows its work and why it ended, without its bookkeeping", () => {
  const { shown, text } = view({ events: "work" });
  for (const type of ["session.status_running", "brain.inputs_consumed", "span.model_request_start"])
    shown.event(event(type, {}));
  shown.event(event("hand.provisioned", {}));
  shown.event(event("session.status_idle", { stop_reason: { type: "end_turn" } }));
  expect(text()).toBe("· hand.provisioned\n· idle: end_turn\n");
});

test("who came when half of an output was over sees it once and whole", () => {
  const { shown, text } = view();
  shown.preview(outputPreview("b\n", "sevt_a", 2n));
  shown.event(result("a\nb", false, "sevt_a"));
  expect(text()).toBe("  │ a\n  │ b\n");
});

test("a failed call and an error of the session are told", () => {
  const { shown, text } = view();
  shown.event(result("no such file", true));
  shown.event(
    event("session.error", {
      error: { type: "x", message: "it is overloaded", part: "model", retry_in_ms: 1500 },
    }),
  );
  expect(text()).toBe(
    "  │ no such file\n  ✗ the call failed\n✗ model: it is overloaded (tried again in 2 s)\n",
  );
});

test("control characters in what others wrote do not reach the terminal", () => {
  const { shown, text } = view({ showUser: true });
  shown.preview(textPreview("a\u001b[2Jb"));
  shown.event(message("a\u001b[2Jb"));
  shown.event(event("user.message", { content: [{ type: "text", text: "\u0007" }] }));
  expect(text()).toBe("a\uFFFD[2Jb\nyou  \uFFFD\n");
});

test("a stop that is no plain end of the turn is told even in a chat", () => {
  const { shown, text } = view();
  shown.event(event("session.status_idle", { stop_reason: { type: "end_turn" } }));
  shown.event(event("session.status_idle", { stop_reason: { type: "retries_exhausted" } }));
  expect(text()).toBe("· idle: retries_exhausted\n");
});

test("a budget that is spent says which limit it was", () => {
  const { shown, text } = view();
  const details = { type: "budget_reached", limit: "max_turns", used: "2", allowed: "2" };
  const stop = { stop_reason: { type: "budget_reached" }, stop_details: details };
  shown.event(event("session.status_idle", stop));
  expect(text()).toBe('· idle: budget_reached (max_turns: 2 used of 2); "session budget" raises it\n');
});

test("a very long output is cut and its rest counted", () => {
  const { shown, text } = view();
  shown.event(result("x".repeat(20_005)));
  expect(text()).toContain("… 5 more characters");
});
