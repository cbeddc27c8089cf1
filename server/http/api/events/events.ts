/** `/v1/sessions/{session_id}/events`. */
import type { Clock } from "../../../../kit/clock.ts";
import type { EventReceipt } from "../../../../proto/gen/tendon/v1/event_pb.js";
import { SessionService } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import type { ApiCall, ApiRoute } from "../api-route.ts";
import { sentEvents } from "./event-input.ts";
import { eventPageText } from "./event-list.ts";
import { streamEvents } from "./event-stream.ts";
import { wholeEventText } from "./event-texts.ts";
import { asReusedKey, withRepeatIds } from "./repeat-ids.ts";
import { logNamed } from "./told-log.ts";

const { method } = SessionService;

export function eventRoutes(clock: Clock): ApiRoute[] {
  const path = "/v1/sessions/{session_id}/events";
  return [
    {
      method: "GET",
      path,
      handle: async (call) => ({ text: await eventPageText(call, sessionLog(call)) }),
    },
    { method: "POST", path, handle: async (call) => ({ text: await sendEvents(call) }) },
    {
      method: "GET",
      path: `${path}/stream`,
      async handle(call) {
        await streamEvents(call, sessionLog(call), clock);
        return { written: true };
      },
    },
  ];
}

function sessionLog({ services, params }: ApiCall) {
  return logNamed(services, params.session_id!);
}

/** Answers with the events as the log has them now. */
async function sendEvents({ services, params, body, requestId }: ApiCall): Promise<string> {
  const sessionId = params.session_id!;
  const said = sentEvents(body);
  const events = withRepeatIds(said, sessionId, requestId);
  const emitted = services.call(method.emitEvents, { sessionId, events });
  const { receipts } = await emitted.catch((error) => {
    throw asReusedKey(error, said);
  });
  const texts: string[] = [];
  for (const receipt of receipts) texts.push(await storedText(services, sessionId, receipt));
  return `{"data":[${texts.join(",")}]}\n`;
}

async function storedText(
  services: ApiCall["services"],
  sessionId: string,
  { id, position }: EventReceipt,
): Promise<string> {
  const request = { sessionId, afterPosition: position - 1n, limit: 1 };
  const { events } = await services.call(method.getEvents, request);
  const [event] = events;
  if (event?.id !== id) throw new Error(`event ${id} is not at its position`);
  return wholeEventText(services, sessionId, event);
}
