import { expect, test } from "vitest";
import { ByteBudget } from "../../kit/byte-budget.ts";
import { isTendonError } from "../../kit/errors.ts";
import type { NewEvent } from "../store/events.ts";
import { GivenFiles } from "./given-files.ts";

const MIB = 1024 * 1024;
const BUDGET_BYTES = 256 * MIB;
/** 12 MiB in base64. */
const PDF = Buffer.concat([Buffer.from("%PDF-"), Buffer.alloc(9 * MIB - 5)]);
const ESCAPED = Buffer.alloc(6 * MIB, 1);
const FILES: Record<string, Buffer> = { pdf: PDF, escaped: ESCAPED };

const block = (file_id: string, type = "document") => ({ type, source: { type: "file", file_id } });
const message = (...fileIds: string[]) => messageOf(...fileIds.map((id) => block(id)));
const messageOf = (...content: object[]): NewEvent => {
  const payload = JSON.stringify({ content });
  return { id: "e", type: "user.message", threadId: "", payload, internal: undefined };
};

/** What came of the request, with the whole budget there again, and the files that were read for it. */
async function besideAll(...events: NewEvent[]) {
  const budget = new ByteBudget(BUDGET_BYTES);
  const read: string[] = [];
  const files: ConstructorParameters<typeof GivenFiles>[0] = {
    async bytes({ fileId, mayRead }) {
      mayRead(FILES[fileId]!.length);
      read.push(fileId);
      return FILES[fileId]!;
    },
  };
  const given = new GivenFiles(files, budget);
  const outcome = await given.beside(events, "w").then(
    (beside) => beside.map(({ internal }) => internal!.length),
    (error: unknown) => {
      if (isTendonError(error)) return `${error.reason} ${error.metadata.field}`;
      throw error;
    },
  );
  given.close();
  budget.take(BUDGET_BYTES);
  return { outcome, read };
}

test("a file is read once, and counts in an event and a request as often as it is named", async () => {
  const twice = await besideAll(message("pdf", "pdf"), message("pdf", "pdf"));
  expect(twice).toEqual({ outcome: [expect.any(Number), expect.any(Number)], read: ["pdf"] });
  const inOne = await besideAll(message("pdf", "pdf", "pdf"));
  expect(inOne.outcome).toBe("MESSAGE_TOO_LARGE events[0].payload.content[2].source.file_id");
  const inAll = await besideAll(...Array.from({ length: 100 }, () => message("pdf")));
  expect(inAll.outcome).toBe("MESSAGE_TOO_LARGE events[5].payload.content[0].source.file_id");
});

test("a text counts as it is kept, with what has to be escaped", async () => {
  const { outcome } = await besideAll(message("escaped"));
  expect(outcome).toBe("MESSAGE_TOO_LARGE events[0].payload.content[0].source.file_id");
});

test("a document that is named as an image too is refused", async () => {
  const { outcome } = await besideAll(messageOf(block("pdf"), block("pdf", "image")));
  expect(outcome).toBe("INVALID_FIELD events[0].payload.content[1].source.file_id");
});
