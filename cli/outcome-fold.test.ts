import { create } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { expect, it } from "vitest";
import { EventSchema } from "../proto/gen/tendon/v1/event_pb.js";
import { outcomesOf } from "./outcome-fold.ts";

type Seen = [type: string, payload?: object, threadId?: string];

const fold = (...events: Seen[]) =>
  outcomesOf(
    events.map(([type, payload = {}, threadId = ""], i) =>
      create(EventSchema, {
        id: `sevt_${i + 1}`,
        position: BigInt(i + 1),
        type,
        payload: JSON.stringify(payload),
        threadId,
        createdAt: timestampFromMs(i * 1_000),
      }),
    ),
  );

const span = (what: string, outcome: string, more: object = {}): Seen => [
  `span.outcome_evaluation_${what}`,
  { outcome_id: outcome, iteration: 0, ...more },
];
const end = (start: string, result: string, more: object = {}, outcome = "outc_1") =>
  span("end", outcome, { outcome_evaluation_start_id: start, result, ...more });

it("an outcome has its evaluations, each from its start to its end, with what was said of each criterion", () => {
  const criteria = [{ criterion: "blue", met: false, explanation: "It is red." }];
  expect(
    fold(
      ["user.define_outcome", { description: "Paint.", max_iterations: 5 }],
      span("start", "outc_1", { model: "m" }),
      span("ongoing", "outc_1"),
      span("ongoing", "outc_1"),
      end("sevt_2", "needs_revision", { explanation: "Not yet.", criteria, usage: { input_tokens: 7 } }),
      span("start", "outc_1", { iteration: 1, model: "m" }),
    ),
  ).toMatchObject([
    {
      outcome_id: "outc_1",
      position: 1,
      description: "Paint.",
      max_iterations: 5,
      evaluations: [
        {
          start_id: "sevt_2",
          iteration: 0,
          model: "m",
          started_at_ms: 1_000,
          ended_at_ms: 4_000,
          heartbeats: 2,
          result: "needs_revision",
          explanation: "Not yet.",
          criteria,
          usage: { input_tokens: 7 },
        },
        { start_id: "sevt_6", iteration: 1, ended_at_ms: null, result: null },
      ],
    },
  ]);
});

it("one that ended before it was judged says so, and the next one is told apart from it; threads have none", () => {
  const outcomes = fold(
    ["user.define_outcome", { description: "one" }],
    end("", "interrupted"),
    ["user.define_outcome", { description: "two" }],
    ["user.define_outcome", { description: "a thread's" }, "sthr_1"],
    span("start", "outc_3"),
    end("sevt_5", "satisfied", {}, "outc_3"),
  );
  expect(outcomes).toMatchObject([
    {
      description: "one",
      max_iterations: 3,
      evaluations: [{ start_id: "", started_at_ms: null, result: "interrupted" }],
    },
    { description: "two", evaluations: [{ start_id: "sevt_5", result: "satisfied" }] },
  ]);
});
