/** What a session's log says of tool calls and their results. */
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";

type Payload = Record<string, unknown> & { content: { text: string }[] };

export const payloads = (events: readonly Event[], type: string): Payload[] =>
  events.filter((event) => event.type === type).map(({ payload }) => JSON.parse(payload));

export const resultTexts = (events: readonly Event[]) =>
  payloads(events, "agent.tool_result").map(({ content }) => content.map(({ text }) => text).join(""));

/** Texts of the results, in the order of their calls. */
export function resultsInOrder(events: readonly Event[]): string[] {
  const texts = new Map(
    payloads(events, "agent.tool_result").map((p) => [
      p.tool_use_id,
      p.content.map(({ text }) => text).join(""),
    ]),
  );
  return events.filter(({ type }) => type === "agent.tool_use").map(({ id }) => texts.get(id) ?? "");
}
