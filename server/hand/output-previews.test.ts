import { expect, test } from "vitest";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import { OutputPreviews, PREVIEW_BYTES_PER_SECOND } from "./output-previews.ts";

function previews() {
  const clock = new FakeClock();
  const shown: { offset: number; text: string }[] = [];
  const output = new OutputPreviews("sevt_1", clock, ({ offset, text }) =>
    shown.push({ offset: Number(offset), text: text ?? "" }),
  );
  return { clock, shown, output };
}

test("output is shown as it comes, at most ten times a second", async () => {
  const { clock, shown, output } = previews();
  let offset = 0;
  for (let step = 0; step < 1_000; step += 1) {
    output.push(offset, Buffer.from("x"));
    offset += 1;
    await clock.advance(1);
  }
  output.finish();
  expect(shown.length).toBeLessThanOrEqual(12);
  expect(shown.map(({ text }) => text).join("")).toBe("x".repeat(1_000));
  expect(shown[0]).toEqual({ offset: 0, text: "x" });
});

test("of a flood no more than 64 KiB a second is shown, and offsets tell what was left out", async () => {
  const { clock, shown, output } = previews();
  const chunk = Buffer.alloc(64 * 1024, "y");
  let offset = 0;
  for (let second = 0; second < 3; second += 1) {
    for (let step = 0; step < 100; step += 1) {
      output.push(offset, chunk);
      offset += chunk.length;
      await clock.advance(10);
    }
  }
  output.finish();
  const bytes = shown.reduce((sum, { text }) => sum + text.length, 0);
  expect(bytes).toBeLessThanOrEqual(4 * PREVIEW_BYTES_PER_SECOND);
  expect(bytes).toBeGreaterThanOrEqual(3 * PREVIEW_BYTES_PER_SECOND);
  let end = 0;
  for (const piece of shown) {
    expect(piece.offset).toBeGreaterThanOrEqual(end);
    end = piece.offset + piece.text.length;
  }
});

test("characters are never cut, whatever the pieces (R12)", async () => {
  const { clock, shown, output } = previews();
  const text = "añ€😀b".repeat(20);
  const bytes = Buffer.from(text);
  for (let index = 0; index < bytes.length; index += 1) {
    output.push(index, bytes.subarray(index, index + 1));
    await clock.advance(30);
  }
  output.finish();
  expect(shown.map((piece) => piece.text).join("")).toBe(text);
  expect(shown.some((piece) => piece.text.includes("\ufffd"))).toBe(false);
});

test("output that comes again after a reconnect is not shown again", async () => {
  const { clock, shown, output } = previews();
  output.push(0, Buffer.from("abc"));
  await clock.advance(200);
  output.push(0, Buffer.from("abcdef"));
  await clock.advance(200);
  output.finish();
  output.push(6, Buffer.from("late"));
  expect(shown).toEqual([
    { offset: 0, text: "abc" },
    { offset: 3, text: "def" },
  ]);
});
