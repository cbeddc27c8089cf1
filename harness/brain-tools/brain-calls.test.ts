import { describe, expect, it } from "vitest";
import { TendonError } from "../../kit/errors.ts";
import { createLogger } from "../../kit/log.ts";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import { Lease, LeaseEnded } from "../lease.ts";
import type { OpenCall } from "../session-state.ts";
import { BrainCalls, type BrainCallsOptions } from "./brain-calls.ts";
import type { BrainTool, BrainToolResult } from "./brain-tool.ts";

const call: OpenCall = {
  eventId: "sevt_1",
  kind: "brain",
  slot: "",
  server: "",
  name: "note",
  input: `{"a":1}`,
  isReached: false,
  permission: "allow",
  answerTimeoutMs: 0,
  confirmation: undefined,
};

/** Runs one call of a tool that does `steps` one after the other: a result, or what it throws. */
async function runWith(
  steps: (BrainToolResult | Error)[],
  options: { call?: OpenCall; signal?: AbortSignal } = {},
) {
  const seen: { input: object; eventId: string }[] = [];
  const clock = new FakeClock();
  const lease = new Lease("sesn_1", { leaseId: "lease_1", epoch: 1n }, "", Number.POSITIVE_INFINITY);
  const tool: BrainTool = {
    name: "note",
    description: "Notes.",
    inputSchema: `{"type":"object","properties":{"a":{"type":"number"}}}`,
    async run(input, { eventId }) {
      seen.push({ input, eventId });
      const step = steps[seen.length - 1] ?? steps.at(-1)!;
      if (step instanceof Error) throw step;
      return step;
    },
  };
  const about = { sessionId: "sesn_1", lease, clock, log: createLogger("test", "silent") };
  const calls = new BrainCalls({
    ...about,
    tools: new Map([["note", tool]]),
  } as unknown as BrainCallsOptions);
  const running = calls.run(options.call ?? call, options.signal ?? new AbortController().signal);
  let settled = false;
  const done = running.finally(() => {
    settled = true;
  });
  done.catch(() => {});
  for (let i = 0; i < 100 && !settled; i += 1) {
    await new Promise((resolve) => setImmediate(resolve));
    await clock.advance(2_000);
  }
  return { result: await done, seen, lease };
}

const text = (words: string) => [{ type: "text", text: words }];

describe("a call that the brain runs itself", () => {
  it("gives the tool its input and the event's id, and has the tool's answer as its result", async () => {
    const { result, seen } = await runWith([{ text: "noted" }]);
    expect(result).toEqual({ content: text("noted"), isError: false });
    expect(seen).toEqual([{ input: { a: 1 }, eventId: "sevt_1" }]);
    const blocks = [{ type: "image", source: {} }];
    expect((await runWith([{ content: blocks, isError: true }])).result).toEqual({
      content: blocks,
      isError: true,
    });
  });

  it("with a field that the tool does not have is an error result, and nothing is done", async () => {
    const { result, seen } = await runWith([{ text: "noted" }], {
      call: { ...call, input: `{"a":1,"b":2}` },
    });
    expect(result).toEqual({ content: text(`"note" has no field "b". Its fields: a.`), isError: true });
    expect(seen).toEqual([]);
  });

  it("is run again with the same id after a failure that passes", async () => {
    const away = new TendonError("UNAVAILABLE", "away");
    const { result, seen } = await runWith([away, away, { text: "noted" }]);
    expect(result).toEqual({ content: text("noted"), isError: false });
    expect(seen.map(({ eventId }) => eventId)).toEqual(["sevt_1", "sevt_1", "sevt_1"]);
  });

  it("tells the model of a failure that has a reason, and keeps the text of a bug inside", async () => {
    const final = await runWith([new TendonError("NOT_FOUND", `there is no hand "x"`)]);
    expect(final.result).toEqual({ content: text(`there is no hand "x"`), isError: true });
    const bug = await runWith([new Error("secret path")]);
    expect(bug.result).toEqual({ content: text(`"note" failed with an internal error.`), isError: true });
    const broken = await runWith([new TendonError("INTERNAL", "internal error")]);
    expect(broken.result.isError).toBe(true);
    expect(broken.seen).toHaveLength(8);
  });

  it("ends without a result when the lease is over or the signal aborts", async () => {
    await expect(runWith([new TendonError("LEASE_FENCED", "newer epoch")])).rejects.toThrow(LeaseEnded);
    const stop = new AbortController();
    stop.abort(new Error("interrupted"));
    await expect(runWith([new Error("too late")], { signal: stop.signal })).rejects.toThrow("interrupted");
  });

  it("of a tool that this harness does not have is an error result", async () => {
    const { result, seen } = await runWith([{ text: "" }], { call: { ...call, name: "other" } });
    expect(result).toMatchObject({ isError: true, content: [{ text: expect.stringContaining(`"other"`) }] });
    expect(seen).toEqual([]);
  });

  it("has a bounded result: long texts are cut in the middle, other content that is too large is an error", async () => {
    const long = `${"a".repeat(30_000)}${"b".repeat(100_000)}`;
    const { result } = await runWith([{ text: long }]);
    const cut = (result.content[0] as { text: string }).text;
    expect(cut.length).toBeLessThan(100_100);
    expect(cut).toMatch(/^a{20000}\n\[… 30000 characters are left out here …\]\nb{80000}$/);
    const image = { type: "image", source: { data: "x".repeat(5 * 1024 * 1024) } };
    expect((await runWith([{ content: [image], isError: false }])).result).toMatchObject({ isError: true });
    const many = Array.from({ length: 101 }, () => ({ type: "text", text: "a" }));
    expect((await runWith([{ content: many, isError: false }])).result).toMatchObject({ isError: true });
    expect((await runWith([{ text: " " }])).result).toEqual({ content: [], isError: false });
  });
});
