/** What goes through a tunnel, in one shape for all three streams that carry one: requests and responses of each are alike. */
import { TendonError } from "../errors.ts";

export type TunnelPart =
  /** At most MAX_PART_BYTES. */
  | { readonly case: "data"; readonly value: Uint8Array }
  /** This side sends no more; the last that comes from it. */
  | { readonly case: "end" };

/** What the contract allows in one message. */
export const MAX_PART_BYTES = 65_536;

/** Responses, and what replicas send each other. */
interface PlainPart {
  readonly data: Uint8Array;
  readonly end: boolean;
}

interface Request {
  readonly kind:
    | { readonly case: "data"; readonly value: Uint8Array }
    | { readonly case: "end" }
    | { readonly case: "open" }
    | { readonly case: undefined };
}

/** The parts of a stream's messages, after its first one, which the caller has taken. */
export async function* partsOfRequests(requests: AsyncIterator<Request>): AsyncGenerator<TunnelPart> {
  for (let next = await requests.next(); !next.done; next = await requests.next()) {
    const { kind } = next.value;
    if (kind.case === "data") yield { case: "data", value: kind.value };
    else if (kind.case === "end") yield { case: "end" };
    else throw new TendonError("INVALID_FIELD", "open: only the first message may be one", { field: "open" });
  }
}

export async function* partsOfResponses(responses: AsyncIterator<PlainPart>): AsyncGenerator<TunnelPart> {
  for (let next = await responses.next(); !next.done; next = await responses.next()) {
    const { data, end } = next.value;
    if (data.length > 0) yield { case: "data", value: data };
    if (end) yield { case: "end" };
  }
}

export function responseOf(part: TunnelPart): { data: Uint8Array } | { end: true } {
  return part.case === "data" ? { data: part.value } : { end: true };
}
