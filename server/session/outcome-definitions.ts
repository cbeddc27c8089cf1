/** Outcomes that clients define: one at a time, each with the text of its rubric beside it for the brain. */
import { invalidField } from "../../kit/errors.ts";
import { isId } from "../../kit/ids.ts";
import type { FileAttachments } from "../ports/files.ts";
import type { NewEvent } from "../store/events.ts";
import { MAX_RUBRIC_CHARS } from "./payload-shapes.ts";

const DEFINED = "user.define_outcome";

export function definesOutcome({ type }: Pick<NewEvent, "type">): boolean {
  return type === DEFINED;
}

/**
 * The same events; those that name a file as rubric with its text, so that the log stands by itself whatever becomes of the
 * file. INVALID_FIELD for a second definition, one for a thread, and a file that is no text or too long; NOT_FOUND for a file
 * that is not there.
 */
export async function withRubrics(
  files: Pick<FileAttachments, "text">,
  events: readonly NewEvent[],
  { workspaceId, sessionId }: { readonly workspaceId: string; readonly sessionId: string },
  field = "events",
): Promise<NewEvent[]> {
  const first = events.findIndex(definesOutcome);
  if (first < 0) return [...events];
  for (const [at, event] of events.entries()) {
    if (!definesOutcome(event)) continue;
    if (at !== first)
      throw invalidField(`${field}[${at}].type`, `${field}[${first}] defines an outcome already`);
    if (isId("thread", sessionId) || event.threadId !== "")
      throw invalidField(
        `${field}[${at}].type`,
        "a thread has no outcome of its own: its session may have one",
      );
  }
  const event = events[first]!;
  const { rubric } = JSON.parse(event.payload) as { rubric: { type: string; file_id?: string } };
  if (rubric.type !== "file") return [...events];
  const request = { fileId: rubric.file_id ?? "", workspaceId, maxChars: MAX_RUBRIC_CHARS };
  const text = await files.text(request, `${field}[${first}].payload.rubric.file_id`);
  if (text.trim() === "") throw invalidField(`${field}[${first}].payload.rubric.file_id`, "is an empty file");
  const internal = JSON.stringify({ v: 1, rubric_text: text });
  return events.with(first, { ...event, internal });
}
