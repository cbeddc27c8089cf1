/** Every failure that a log tells of names its part and a reason code: all places that write one are known here, and asked. */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { create } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { notStarted, resultOfTool, unknownOutcome } from "../../hand-agent/execution-results.ts";
import { errorResult as toolError } from "../../hand-agent/result.ts";
import * as brain from "../../harness/brain-events.ts";
import { gaveUpEvents } from "../../harness/gave-up-events.ts";
import { type ModelFailure, NO_USAGE } from "../../harness/loops/loop.ts";
import { McpProblem } from "../../harness/mcp-client/mcp-problem.ts";
import { listedEvents, troubleEvents } from "../../harness/mcp-client/mcp-tool-events.ts";
import { GRADER_UNREADABLE } from "../../harness/outcome/outcome-events.ts";
import { type CallVerdict, HIGH_RISK, NOT_JUDGED } from "../../harness/permission/call-verdict.ts";
import { newSessionState } from "../../harness/session-state.ts";
import { type CatalogueTool, toolCatalogue } from "../../harness/tool-catalogue.ts";
import { HandFileSchema, RepositoryOutcomeSchema } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { ExecutionOutcome, ExecutionResultSchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import * as callFailures from "../../server/hand/call-failures.ts";
import { handLostResult } from "../../server/hand/hand-endings.ts";
import { lostEvent, outputRefusedEvent } from "../../server/hand/hand-events.ts";
import { repositoryErrors } from "../../server/hand/repository-events.ts";
import * as results from "../../server/hand/results.ts";
import { giveUpEvents, rescheduledEvent } from "../../server/harness/outcomes.ts";
import { verdictsFor } from "../../server/harness/overdue-answers.ts";
import { mcpResultEvent } from "../../server/mcp/results.ts";
import type { HandRecord } from "../../server/store/hands.ts";
import { endedCall } from "../../server/store/open-calls.ts";
import { endedWorkerCall } from "../../server/store/worker-calls.ts";
import { webResultEvent } from "../../server/web/results.ts";
import { LOST } from "../../server/work/rules.ts";
import { failuresOf } from "../kit/failures.ts";
import { sourceFiles } from "../tidy/source-tree.ts";

interface Told {
  readonly type: string;
  readonly payload: string;
}
type Maker = readonly [what: string, makes: () => readonly Told[], says: readonly string[]];

let ids = 0;
const newId = () => `sevt_${++ids}`;
const state = newSessionState();
const MODEL_FAILURE: ModelFailure = {
  type: "model_overloaded_error",
  message: "busy",
  maxAttempts: 3,
  retryAfterMs: undefined,
  began: false,
};
const BOUNDS = { takeQueuedEachStep: false, maxRounds: 1, maxCutOffs: 1, maxCompactions: 1, maxBytes: 1 };
const retry = { kind: "retry", waitMs: 5, elapsedMs: 1 } as const;
const exhausted = { kind: "exhausted", elapsedMs: 1 } as const;
const hand = { handId: "hand_1", slot: "", handAgentId: "hagt_1" } as HandRecord;
const output = create(HandFileSchema, { path: "a" });
const call = { executionId: "sevt_call", slot: "" };
const open = { eventId: "sevt_call", type: "agent.tool_use", threadId: "" };
const lost = { part: "sandbox", reason: "WORKSPACE_LOST" } as const;

const outcome = (failure: string, part: string) =>
  create(RepositoryOutcomeSchema, { url: "https://git.example/a", failure, part, message: "x" });

const mcpError = { content: [], structuredContent: undefined, isError: true };

const told = (result: Parameters<typeof results.resultEvent>[1]) => [results.resultEvent(call, result)];
const toldFailure = (failure: results.CallFailure) => told(results.failureResult(failure));
const asSent = (outcome: ExecutionOutcome, isError = true) =>
  told(results.acceptResult(create(ExecutionResultSchema, { isError, outcome, content: "[]" }), ""));

function invalidCall(): Told[] {
  const response = {
    events: [
      {
        kind: "call" as const,
        eventId: newId(),
        modelName: "nonesuch",
        inputText: "{}",
        problem: undefined,
        blocks: [],
      },
    ],
    stop: { kind: "done" as const, reason: "tool_use" },
    usage: { inputTokens: 1, outputTokens: 1, cacheReadInputTokens: 0, cacheCreationInputTokens: 0 },
  };
  return brain.responseEvents(response, "sevt_span", toolCatalogue(undefined, []), "m", newId);
}

function judgedCall(verdict: CallVerdict): Told[] {
  const call = {
    kind: "call" as const,
    eventId: "sevt_judged",
    modelName: "note",
    inputText: "{}",
    problem: undefined,
    blocks: [],
  };
  const stop = { kind: "done" as const, reason: "tool_use" };
  const response = { events: [call], stop, usage: NO_USAGE };
  const tool = { modelName: "note", kind: "hand", name: "note", slot: "", policy: "auto" } as CatalogueTool;
  const catalogue = { offered: [tool], find: () => tool, reach: () => undefined };
  const verdicts = new Map([[call.eventId, verdict]]);
  return brain.responseEvents(response, "sevt_span", catalogue, "m", newId, verdicts);
}

const overdue = () =>
  verdictsFor({
    calls: [
      {
        eventId: "sevt_1",
        type: "agent.custom_tool_use",
        payload: JSON.stringify({ answer_timeout_ms: 1 }),
        waitedMs: 5,
      } as never,
    ],
  }).events;

const away = (type: string) => () =>
  listedEvents([{ name: "notes", problem: new McpProblem(type, "no") }], 1, newId).slice(0, 1);

const webFailure = (failure: Parameters<typeof webResultEvent>[2]["failure"]) =>
  webResultEvent("sevt_c", { content: [], isError: true }, { failure, searches: 0, upstreamMs: undefined });

const MAKERS: Readonly<Record<string, readonly Maker[]>> = {
  "harness/mcp-client/mcp-tool-events.ts": [
    [
      "an MCP server that is not reached",
      away("mcp_connection_failed_error"),
      ["upstream MCP_CONNECTION_FAILED"],
    ],
    [
      "one that takes no credential",
      away("mcp_authentication_failed_error"),
      ["upstream MCP_AUTHENTICATION_FAILED"],
    ],
    ["a proxy that is away", away("proxy_unreachable"), ["proxy PROXY_UNREACHABLE"]],
    ["a proxy that refuses", away("not_found_error"), ["proxy NOT_SENT"]],
    [
      "an MCP server that refuses a call",
      () =>
        troubleEvents(
          new Map([
            [
              "notes",
              {
                type: "mcp_authentication_failed_error",
                message: "no",
                part: "upstream",
                reason: "MCP_AUTHENTICATION_FAILED",
              },
            ],
          ]),
          newId,
        ),
      ["upstream MCP_AUTHENTICATION_FAILED"],
    ],
  ],
  "harness/brain-events.ts": [
    ["a call that the model made up", invalidCall, ["model INVALID_TOOL_CALL"]],
    ["a call that was judged too risky", () => judgedCall(HIGH_RISK), ["model HIGH_RISK"]],
    ["a call that could not be judged", () => judgedCall(NOT_JUDGED), ["model NOT_JUDGED"]],
    [
      "a call that an interrupt ended",
      () => [brain.errorResult(newId(), { eventId: "sevt_c", kind: "hand" }, "no", brain.INTERRUPTED)],
      ["client INTERRUPTED"],
    ],
    [
      "a tool of the brain that says no",
      () => [brain.toolResult(newId(), { eventId: "sevt_c", kind: "brain" }, { content: [], isError: true })],
      ["harness TOOL_FAILED"],
    ],
    [
      "a request whose holder is gone",
      () => [brain.deadSpanEnd(newId(), "sevt_s", brain.HARNESS_GONE)],
      ["harness HARNESS_GONE"],
    ],
    [
      "a model that is asked again",
      () => brain.failureEvents("sevt_s", MODEL_FAILURE, retry, state, newId),
      ["model MODEL_OVERLOADED", "model MODEL_OVERLOADED", "model MODEL_OVERLOADED"],
    ],
    [
      "a model that is given up",
      () => brain.failureEvents("sevt_s", MODEL_FAILURE, exhausted, state, newId),
      ["model MODEL_OVERLOADED", "model MODEL_OVERLOADED"],
    ],
    [
      "a turn that has reached a bound",
      () =>
        (["rounds", "cut_offs", "compactions", "history"] as const).flatMap((why) =>
          gaveUpEvents(why, BOUNDS, state, newId),
        ),
      [
        "model TOO_MANY_ROUNDS",
        "model TOO_MANY_CUT_OFFS",
        "model TOO_MANY_COMPACTIONS",
        "harness HISTORY_TOO_LARGE",
      ],
    ],
    [
      "a grader that nobody can read",
      () => brain.exhaustedEvents({ type: "x", message: "x", ...GRADER_UNREADABLE }, state, newId),
      ["model GRADER_UNREADABLE"],
    ],
    [
      "a loop that failed",
      () => {
        const origin = { part: "harness", reason: "LOOP_EXITED" } as const;
        return brain.failureEvents("sevt_s", { ...MODEL_FAILURE, origin }, exhausted, state, newId);
      },
      ["harness LOOP_EXITED", "harness LOOP_EXITED"],
    ],
  ],
  "server/hand/results.ts": [
    ["a tool that said no", () => asSent(ExecutionOutcome.COMPLETED), ["sandbox TOOL_FAILED"]],
    ["a call that took too long", () => asSent(ExecutionOutcome.TIMED_OUT), ["sandbox TIMED_OUT"]],
    ["a cancelled call", () => asSent(ExecutionOutcome.CANCELLED), ["server CANCELLED"]],
    [
      "a call that an agent did not start",
      () => asSent(ExecutionOutcome.NOT_STARTED),
      ["hand_agent NOT_STARTED"],
    ],
    [
      "a call of unknown outcome",
      () => asSent(ExecutionOutcome.UNKNOWN, false),
      ["hand_agent OUTCOME_UNKNOWN"],
    ],
    [
      "a result that is none",
      () => told(results.acceptResult(create(ExecutionResultSchema, { content: "{" }), "")),
      ["hand_agent INVALID_RESULT"],
    ],
    [
      "a failure whose part nobody knows",
      () => {
        const failure = { part: "moon", reason: "" };
        return told(
          create(ExecutionResultSchema, { isError: true, outcome: ExecutionOutcome.COMPLETED, failure }),
        );
      },
      ["sandbox TOOL_FAILED"],
    ],
    [
      "a call that was cancelled before it began",
      () => told(results.cancelledResult("")),
      ["server CANCELLED"],
    ],
    ["a call that was given up", () => told(results.unknownResult("x")), ["hand_agent OUTCOME_UNKNOWN"]],
    ["a call without its hand", () => told(handLostResult("x")), ["hand_agent HAND_LOST"]],
    [
      "a call without a hand",
      () => toldFailure(callFailures.noHand({ part: "server", reason: "NO_HAND_AGENT", message: "x" })),
      ["server NO_HAND_AGENT"],
    ],
    [
      "a call whose hand has variables, without a proxy",
      () => toldFailure(callFailures.noHand({ part: "proxy", reason: "NOT_CONFIGURED", message: "x" })),
      ["proxy NOT_CONFIGURED"],
    ],
    ["a slot without a hand", () => toldFailure(callFailures.noHandInSlot("x")), ["server NOT_FOUND"]],
    ["an unknown tool", () => toldFailure(callFailures.unknownTool("x", new Set())), ["server UNKNOWN_TOOL"]],
    [
      "an agent out of reach",
      () => toldFailure(callFailures.agentOffline(hand)),
      ["tunnel HAND_AGENT_OFFLINE"],
    ],
    ["a call that stalled", () => told(resultOfTool(toolError("x", "stalled"), 0)), ["sandbox STALLED"]],
    ["a tool that failed", () => told(resultOfTool(toolError("x", "failed"), 0)), ["sandbox TOOL_FAILED"]],
    ["a refusal of the agent", () => told(notStarted("LIMIT_EXCEEDED", "x")), ["hand_agent LIMIT_EXCEEDED"]],
    ["an agent that was restarted", () => told(unknownOutcome("x")), ["hand_agent OUTCOME_UNKNOWN"]],
  ],
  "server/hand/hand-events.ts": [
    [
      "an output that cannot be stored",
      () => [outputRefusedEvent(hand, output, "x")],
      ["server OUTPUT_REFUSED"],
    ],
    ["a lost hand", () => [lostEvent(hand, "x", lost)], ["sandbox WORKSPACE_LOST"]],
  ],
  "server/hand/repository-events.ts": [
    [
      "a repository that was not cloned",
      () => repositoryErrors([outcome("authentication", "upstream"), outcome("not_found", "upstream")]),
      ["upstream REPOSITORY_AUTHENTICATION", "upstream REPOSITORY_NOT_FOUND"],
    ],
    [
      "one that has no such branch, that the proxy forbids, or that the hand has no git for",
      () =>
        repositoryErrors([
          outcome("checkout", "upstream"),
          outcome("forbidden", "proxy"),
          outcome("clone", "sandbox"),
        ]),
      ["upstream REPOSITORY_CHECKOUT", "proxy REPOSITORY_FORBIDDEN", "sandbox REPOSITORY_CLONE"],
    ],
    [
      "one of which a newer agent says what this server does not know",
      () => repositoryErrors([outcome("moved", "moon")]),
      ["hand_agent REPOSITORY_CLONE"],
    ],
  ],
  "server/harness/outcomes.ts": [
    ["a session without a brain", () => [rescheduledEvent()], ["harness NO_LIVE_LEASE"]],
    ["a session that kills its harness", () => giveUpEvents(3), ["harness HARNESS_DIED"]],
  ],
  "server/harness/overdue-answers.ts": [["a call that nobody answered", overdue, ["client NOT_ANSWERED"]]],
  "server/mcp/results.ts": [
    [
      "a tool of an MCP server that says no",
      () => [mcpResultEvent("sevt_c", mcpError, undefined)],
      ["upstream TOOL_FAILED"],
    ],
    [
      "a call of an MCP server that the proxy answered",
      () => [mcpResultEvent("sevt_c", mcpError, { part: "proxy", reason: "OUTCOME_UNKNOWN" })],
      ["proxy OUTCOME_UNKNOWN"],
    ],
  ],
  "server/web/results.ts": [
    ["a web tool that fails", () => [webFailure(undefined)], ["upstream TOOL_FAILED"]],
    [
      "a page that the proxy does not read",
      () => [webFailure({ part: "proxy", reason: "URL_NOT_ALLOWED" })],
      ["proxy URL_NOT_ALLOWED"],
    ],
    [
      "a URL that was not shown",
      () => [webFailure({ part: "proxy", reason: "URL_NOT_IN_PRIOR_CONTEXT" })],
      ["proxy URL_NOT_IN_PRIOR_CONTEXT"],
    ],
    [
      "a PDF that is too large",
      () => [webFailure({ part: "upstream", reason: "CONTENT_TOO_LARGE" })],
      ["upstream CONTENT_TOO_LARGE"],
    ],
  ],
  "server/store/worker-calls.ts": [
    [
      "a call whose worker was lost",
      () => [endedWorkerCall({ callId: "sevt_call", threadId: "" }, LOST)],
      ["client WORKER_LOST"],
    ],
  ],
  "server/store/open-calls.ts": [
    [
      "a call of an ended session",
      () => [endedCall(open, "x", "SESSION_ARCHIVED")],
      ["client SESSION_ARCHIVED"],
    ],
  ],
};

/** Written where no test can call it; what is said there is shown by the tests of these parts. */
const ELSEWHERE: Readonly<Record<string, string>> = {
  "server/hand/unheard-calls.ts": 'reason: "HAND_AGENT_OFFLINE"',
  "server/store/postgres/log-copies.ts": "detail: handText, failure",
};

/** A failure is being written: into a result, the end of a request, or an event that is one. */
const WRITES =
  /\bis_error: (true|isError|result\.isError)|(event|eventOf|ownEvent|Event)\(\s*(newId\(\)|id)?,?\s*"(session\.error|hand\.lost|hand\.output_refused|session\.status_rescheduled)"|type: "(session\.error|hand\.lost|hand\.output_refused|session\.status_rescheduled)"/;

// Loops and the demo model write none: a loop proposes, and the runner appends.
test("no other place writes failures into a log; a new one belongs into this test", () => {
  const found = sourceFiles(["server", "harness", "hand-agent", "mcp-proxy", "kit"])
    .filter(
      ({ path, isTest, text }) =>
        !isTest && !/\/(demo-model|loops)\//.test(path) && WRITES.test(withoutComments(text)),
    )
    .map(({ path }) => path);
  expect(found.sort()).toEqual([...Object.keys(MAKERS), ...Object.keys(ELSEWHERE)].sort());
});

test("what is written where no test can call it names its part and reason too", () => {
  for (const [path, words] of Object.entries(ELSEWHERE)) expect(source(path)).toContain(words);
});

describe.each(Object.entries(MAKERS))("%s", (_path, makers) => {
  test.each(makers)("%s: says where it failed, and why", (_what, makes, says) => {
    expect(failuresOf(makes())).toEqual(says);
  });
});

test("a failure that names nothing, or an unknown part, would be found", () => {
  const result = (more: object) => ({
    type: "agent.tool_result",
    payload: JSON.stringify({ tool_use_id: "sevt_1", is_error: true, ...more }),
  });
  expect(failuresOf([result({})])[0]).toContain("not named");
  expect(failuresOf([result({ failure: { part: "moon", reason: "X" } })])[0]).toContain("not named");
  expect(failuresOf([result({ failure: { part: "model", reason: "no code" } })])[0]).toContain("not named");
  expect(failuresOf([{ type: "session.error", payload: "{}" }])[0]).toContain("not named");
});

test("every reason that is said here stands in docs/tracing.md", () => {
  const page = source("docs/tracing.md");
  const said = Object.values(MAKERS).flatMap((makers) => makers.flatMap(([, , says]) => says));
  const missing = [...new Set(said)].filter((one) => !page.includes(`\`${one.split(" ")[1]}\``));
  expect(missing).toEqual([]);
});

function source(path: string): string {
  return readFileSync(fileURLToPath(new URL(`../../${path}`, import.meta.url)), "utf8");
}

function withoutComments(text: string): string {
  return text.replace(/\/\*[\s\S]*?\*\//g, "").replace(/(^|[^:"'`])\/\/.*$/gm, "$1");
}
