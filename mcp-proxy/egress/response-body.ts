/** What a host answers, without the values: decoded where it is compressed all the same, scrubbed as it streams by. */
import type { IncomingMessage } from "node:http";
import { Transform } from "node:stream";
import { createBrotliDecompress, createGunzip, createInflate } from "node:zlib";
import { EgressRefusal } from "./refusal.ts";
import { type Headers, passedBack } from "./request-head.ts";
import { Scrubber } from "./scrubber.ts";

const DECODERS: Readonly<Record<string, () => Transform>> = {
  gzip: createGunzip,
  "x-gzip": createGunzip,
  deflate: createInflate,
  br: createBrotliDecompress,
};

export interface Scrubbed {
  readonly headers: Headers;
  /** In the order in which the answer goes through them. */
  readonly through: readonly Transform[];
}

/** Throws an EgressRefusal where the answer cannot be looked into. */
export function scrubbed(
  answer: Pick<IncomingMessage, "statusCode">,
  received: Headers,
  { method, values }: { method: string; values: readonly string[] },
): Scrubbed {
  const scrubber = new Scrubber(values);
  const headers = passedBack(received);
  if (scrubber.isIdle) return { headers, through: [] };
  for (const [name, all] of headers) {
    const texts = all.map((value) => scrubber.text(value));
    if (scrubber.isInName(name)) headers.delete(name);
    else headers.set(name, texts);
  }
  // One that is not undone by now would stand in the body, and no header would say so.
  const transfer = (received.get("transfer-encoding") ?? []).join(",").trim().toLowerCase();
  if (transfer !== "" && transfer !== "chunked") throw unreadable();
  const status = answer.statusCode ?? 0;
  if (method === "HEAD" || status === 204 || status === 304) return { headers, through: [] };
  const through: Transform[] = [];
  const codings = (received.get("content-encoding") ?? []).join(",").toLowerCase();
  for (const coding of codings
    .split(",")
    .map((each) => each.trim())
    .reverse()) {
    if (coding === "" || coding === "identity") continue;
    const decoder = DECODERS[coding];
    if (decoder === undefined || through.length > 0) throw unreadable();
    through.push(decoder());
  }
  headers.delete("content-encoding");
  // It may get shorter or longer.
  headers.delete("content-length");
  through.push(scrubbing(scrubber));
  return { headers, through };
}

function unreadable(): EgressRefusal {
  return new EgressRefusal(
    "bad_answer",
    "the host's answer is compressed in a way in which values cannot be found",
  );
}

function scrubbing(scrubber: Scrubber): Transform {
  return new Transform({
    transform(chunk: Buffer, _encoding, done) {
      done(null, scrubber.push(chunk));
    },
    flush(done) {
      done(null, scrubber.end());
    },
  });
}
