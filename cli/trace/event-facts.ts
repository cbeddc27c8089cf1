/** What of an event's payload may be shown without being asked for: names, ids, codes and numbers, in their known forms. */
import { type FailureOrigin, PARTS } from "../../kit/errors.ts";
import { objectOf } from "../event-payload.ts";

/** A name as tools, models and slots have them. Whatever else stands there was made up by somebody. */
export function nameOf(value: unknown, otherwise: string): string {
  return typeof value === "string" && /^[A-Za-z0-9][\w.:/@-]{0,79}$/.test(value) ? value : otherwise;
}

export function wordOf(value: unknown): string {
  return typeof value === "string" && /^[a-z_]{1,40}$/.test(value) ? value : "";
}

export function traceIdOf(value: unknown): string {
  return typeof value === "string" && /^[0-9a-f]{32}$/.test(value) ? value : "";
}

export function countOf(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) && value >= 0 ? value : 0;
}

/** Undefined for what names no known part: logs of before had none. */
export function originOf(value: unknown): FailureOrigin | undefined {
  const { part, reason } = objectOf(value);
  const known = PARTS.find((one) => one === part);
  if (known === undefined) return undefined;
  const isCode = typeof reason === "string" && /^[A-Z][A-Z0-9_]{0,63}$/.test(reason);
  return { part: known, reason: isCode ? reason : "UNKNOWN" };
}
