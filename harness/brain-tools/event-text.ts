/** An event of the log as text that a model can read and search: its fields, one a line. Pure. */
import { timestampDate } from "@bufbuild/protobuf/wkt";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { isObject, parseObject } from "../event-payload.ts";

/** Longer values of `data` are files, which as text say nothing. */
const MAX_DATA_CHARS = 500;

export function eventTitle({ position, type, createdAt }: Event): string {
  const at = createdAt === undefined ? "" : ` ${timestampDate(createdAt).toISOString()}`;
  return `[${position}] ${type}${at}`;
}

/** What clients see of it; nothing of `internal`. */
export function eventText({ payload }: Event): string {
  return fieldLines("", parseObject(payload)).join("\n");
}

function fieldLines(path: string, value: unknown): string[] {
  if (Array.isArray(value)) return value.flatMap((inner, i) => fieldLines(`${path}[${i}]`, inner));
  if (isObject(value)) {
    return Object.entries(value).flatMap(([name, inner]) =>
      fieldLines(path === "" ? name : `${path}.${name}`, inner),
    );
  }
  if (typeof value !== "string") return [`${path}: ${JSON.stringify(value)}`];
  if (/\.data$/.test(path) && value.length > MAX_DATA_CHARS) return [`${path}: [${value.length} characters]`];
  return [`${path}: ${value}`];
}
