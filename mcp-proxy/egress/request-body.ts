/** A request's body: read whole where values may have to be put in, else passed on as it comes. */
import type { IncomingMessage } from "node:http";
import { EgressRefusal } from "./refusal.ts";
import type { Headers } from "./request-head.ts";

/** A larger one is passed on as it is. */
export const MAX_LOOKED_INTO_BYTES = 1024 * 1024;

export type RequestBody =
  | { readonly kind: "none" }
  /** All of it. */
  | { readonly kind: "whole"; readonly bytes: Buffer; release(): void }
  /** Not looked into: what was read of it, the rest follows. `length` where the sandbox said it. */
  | {
      readonly kind: "unread";
      readonly why: "body_compressed" | "body_too_large" | undefined;
      readonly begun: Buffer;
      readonly length: number | undefined;
    };

/** What bodies of all connections of the proxy may hold at once, and what those of one session may, so that others have room. */
export class BodyBudget {
  private readonly maxBytes: number;
  private readonly maxOfSession: number;
  private used = 0;
  private readonly bySession = new Map<string, number>();

  constructor(maxBytes: number, maxOfSession: number) {
    this.maxBytes = maxBytes;
    this.maxOfSession = maxOfSession;
  }

  /** Throws an EgressRefusal when there is no room. */
  take(sessionId: string, bytes: number): void {
    const ofSession = (this.bySession.get(sessionId) ?? 0) + bytes;
    const isFull = this.used + bytes > this.maxBytes;
    if (isFull || ofSession > this.maxOfSession) {
      const whose = isFull ? "" : " of this session's";
      throw new EgressRefusal(
        "unavailable",
        `the proxy holds too many request bodies${whose} at the moment; try again`,
      );
    }
    this.used += bytes;
    this.bySession.set(sessionId, ofSession);
  }

  give(sessionId: string, bytes: number): void {
    this.used -= bytes;
    const left = (this.bySession.get(sessionId) ?? 0) - bytes;
    if (left > 0) this.bySession.set(sessionId, left);
    else this.bySession.delete(sessionId);
  }
}

/** Rejects with an EgressRefusal, or as the request breaks. */
export async function readBody(
  request: IncomingMessage,
  headers: Headers,
  { isLookedInto, budget, sessionId }: { isLookedInto: boolean; budget: BodyBudget; sessionId: string },
): Promise<RequestBody> {
  const said = headers.get("content-length")?.[0];
  const isChunked = headers.has("transfer-encoding");
  if (!isChunked && (said === undefined || Number(said) === 0)) return { kind: "none" };
  const length = said === undefined ? undefined : Number(said);
  const unread = (
    why: "body_compressed" | "body_too_large" | undefined,
    begun = Buffer.alloc(0),
  ): RequestBody => ({
    kind: "unread",
    why,
    begun,
    length,
  });
  if (!isLookedInto) return unread(undefined);
  const codings = (headers.get("content-encoding") ?? []).join(",").trim().toLowerCase();
  if (codings !== "" && codings !== "identity") return unread("body_compressed");
  if (length !== undefined && length > MAX_LOOKED_INTO_BYTES) return unread("body_too_large");
  const parts: Buffer[] = [];
  let bytes = 0;
  let isKept = false;
  try {
    for (;;) {
      const chunk = (await nextChunk(request)) as Buffer | undefined;
      if (chunk === undefined) break;
      budget.take(sessionId, chunk.length);
      bytes += chunk.length;
      parts.push(chunk);
      if (bytes > MAX_LOOKED_INTO_BYTES) return unread("body_too_large", Buffer.concat(parts));
    }
    isKept = true;
    return { kind: "whole", bytes: Buffer.concat(parts), release: () => budget.give(sessionId, bytes) };
  } finally {
    if (!isKept) budget.give(sessionId, bytes);
  }
}

/** Undefined at the end. Unlike iteration this leaves the rest to whoever reads on. */
function nextChunk(request: IncomingMessage): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const look = () => {
      const chunk: unknown = request.read();
      if (chunk !== null) settle(() => resolve(chunk));
      else if (request.readableEnded) settle(() => resolve(undefined));
    };
    const onEnd = () => settle(() => resolve(undefined));
    const onError = (error: Error) => settle(() => reject(error));
    const onClose = () => settle(() => reject(new Error("the sandbox broke the connection")));
    const settle = (answer: () => void) => {
      request.off("readable", look).off("end", onEnd).off("error", onError).off("close", onClose);
      answer();
    };
    request.on("readable", look).once("end", onEnd).once("error", onError).once("close", onClose);
    look();
  });
}
