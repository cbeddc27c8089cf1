/** The event that benches append: of a client's own type, so that no brain is asked for, and as long as a short message. */
import { newId } from "../../kit/ids.ts";

export const SAMPLE_TYPE = "bench.noted";
export const SAMPLE_PAYLOAD = JSON.stringify({ content: [{ type: "text", text: "x".repeat(200) }] });

export function sampleEvent() {
  return { id: newId("event"), type: SAMPLE_TYPE, payload: SAMPLE_PAYLOAD };
}
