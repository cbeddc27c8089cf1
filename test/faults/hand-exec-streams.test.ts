/** R11, R12, X2, X6: what callers of a call get over the whole way, wherever they start and whatever breaks. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { ExecutionOutcome } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../kit/eventually.ts";
import { collectExecution, type Ran, textOfResult } from "../kit/execution-stream.ts";
import { isWholeRun, trials } from "../kit/fault-trials.ts";
import { HandOperator } from "../kit/hand-operator.ts";
import { type Platform, startPlatform } from "../kit/platform.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";

vi.setConfig({ testTimeout: 180_000, hookTimeout: 120_000 });

let database: TestDatabase;
let platform: Platform;
let operator: HandOperator;

beforeAll(async () => {
  database = await createTestDatabase();
  platform = await startPlatform({
    programs: ["hand-agent"],
    env: { server: { TENDON_DATABASE_URL: database.url, TENDON_DATABASE_POOL: "5" } },
  });
  operator = new HandOperator(platform);
});
afterAll(async () => {
  await platform?.stop();
  await database?.drop();
});

/** What `seq 1 …` prints, up to so many bytes. */
function numbers(bytes: number): string {
  const lines: string[] = [];
  for (let number = 1, length = 0; length < bytes; number += 1) {
    lines.push(`${number}\n`);
    length += lines.at(-1)?.length ?? 0;
  }
  return lines.join("").slice(0, bytes);
}

function attach(
  handId: string,
  executionId: string,
  command: string,
  fromOffset: number,
  onBound: () => void = () => {},
): Promise<Ran> {
  const input = JSON.stringify({ command });
  const request = { executionId, handId, name: "bash", input, fromOffset: BigInt(fromOffset) };
  const told = async function* () {
    for await (const one of operator.hands.execute(request)) {
      if (one.kind.case === "bound") onBound();
      yield one;
    }
  };
  return collectExecution(told());
}

const KiB = 1024;
const EDGES = [8 * KiB, 64 * KiB, KiB * KiB];

describe("a call's output (R11, X2)", () => {
  const edges = EDGES.flatMap((edge) => [edge - 1, edge, edge + 1]);
  // In `npm test` one below an edge, one on an edge, one above.
  const sizes = isWholeRun ? edges : [8 * KiB - 1, 64 * KiB, KiB * KiB + 1];

  test.each(sizes)(
    "of %i bytes is whole, and who attaches at byte k gets exactly bytes k..",
    async (bytes) => {
      const hand = await operator.provision();
      // It runs until all have come to it.
      const command = `seq 1 1000000 | head -c ${bytes}; until [ -e all ]; do sleep 0.05; done; exit 7`;
      const call = operator.begin(hand.id, command);
      const whole = numbers(bytes);
      const offsets = [0, 1, bytes - 1, bytes, ...EDGES.flatMap((edge) => [edge - 1, edge, edge + 1])];
      let bound = 0;
      const onBound = () => {
        bound += 1;
      };
      const readers = offsets
        .filter((offset) => offset <= bytes)
        .map(async (offset) => ({
          offset,
          ran: await attach(hand.id, call.executionId, command, offset, onBound),
        }));
      await eventually(() => bound === readers.length);
      await writeFile(join(platform.dataDir, "hand-agent", "hands", hand.id, "work", "all"), "");
      for (const { offset, ran } of [{ offset: 0, ran: await call.ran }, ...(await Promise.all(readers))]) {
        expect(ran.output === whole.slice(offset)).toBe(true);
        if (ran.output !== "") expect(ran.firstOffset).toBe(offset);
        expect(ran.result.exit?.code).toBe(7);
        expect(Number(ran.result.outputBytes)).toBe(bytes);
      }
      await operator.release(hand.id);
    },
  );

  test("that is cut by the death of the server is an error, never an exit; the rest and the real exit come afterwards", async () => {
    const hand = await operator.provision();
    const command = "for i in $(seq 400); do echo line $i; sleep 0.02; done; exit 9";
    let seen = 0;
    const executionId = "cut";
    const request = { executionId, handId: hand.id, name: "bash", input: JSON.stringify({ command }) };
    const pieces: Uint8Array[] = [];
    const cut = (async () => {
      for await (const { kind } of operator.hands.execute(request)) {
        expect(kind.case).not.toBe("result");
        if (kind.case !== "output") continue;
        pieces.push(kind.value.data);
        seen = Number(kind.value.offset) + kind.value.data.length;
      }
    })();
    cut.catch(() => {});
    await eventually(() => seen > 100);
    await platform.program("server").end("SIGKILL");
    await expect(cut).rejects.toMatchObject({ reason: "UNAVAILABLE" });
    await platform.start("server");
    const rest = await attach(hand.id, executionId, command, seen);
    const lines = Array.from({ length: 400 }, (_, index) => `line ${index + 1}\n`).join("");
    expect(Buffer.concat(pieces).toString() + rest.output).toBe(lines);
    expect(rest.result.exit?.code).toBe(9);
    await operator.release(hand.id);
  });
});

test("each call gets its own exit and its own words, however many run at once (R11)", async () => {
  const hands = await Promise.all(Array.from({ length: 4 }, () => operator.provision()));
  const calls = Array.from({ length: trials(40, 400) }, async (_, index) => {
    const hand = hands[index % hands.length];
    const { output, result } = await operator.run(
      hand?.id ?? "",
      `echo call-${index}; (exit ${index % 200})`,
    );
    return [output, result.exit?.code];
  });
  const expected = calls.map((_, index) => [`call-${index}\n`, index % 200]);
  expect(await Promise.all(calls)).toEqual(expected);
  await Promise.all(hands.map(({ id }) => operator.release(id)));
});

test("a call whose time is over returns what it had written (R11)", async () => {
  const hand = await operator.provision();
  // With its shell already there, it writes at once.
  await operator.run(hand.id, "true");
  const { output, result } = await operator.run(hand.id, "echo partial; sleep 60; echo never", {
    timeoutMs: 2_000,
  });
  expect(result.outcome).toBe(ExecutionOutcome.TIMED_OUT);
  expect(output).toBe("partial\n");
  expect(textOfResult(result)).toContain("partial");
  expect(textOfResult(result)).not.toContain("never");
  await operator.release(hand.id);
});

test("output written byte by byte, with characters of every length, lone bytes and U+0000, reads as the whole would (R12, X6)", async () => {
  const hand = await operator.provision();
  const bytes = Buffer.concat([
    Buffer.from("aé€😀 z"),
    Buffer.from([0xff, 0x61, 0xc3, 0x28, 0xe2, 0x82, 0x62, 0xf0, 0x9f, 0x98, 0x63, 0xed, 0xa0, 0x80]),
    Buffer.from("mid\0nul"),
    Buffer.from("end 😀"),
    Buffer.from([0xe2, 0x82]),
  ]);
  const prints = [...bytes].map((byte) => `printf '\\x${byte.toString(16).padStart(2, "0")}'`).join("; ");
  const { result, output } = await operator.run(hand.id, prints);
  expect(textOfResult(result)).toBe(new TextDecoder().decode(bytes));
  expect(output).toBe(bytes.toString());
  expect((await operator.run(hand.id, "echo fine")).output).toBe("fine\n");
  await operator.release(hand.id);
});
