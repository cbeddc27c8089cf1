/** A tunnel whose other end hangs on another replica: its parts are passed on as they come, in both directions. */
import { type Clock, within } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { partsOfResponses } from "../../kit/tunnel/tunnel-part.ts";
import type { PeerService } from "../../proto/gen/tendon/v1/peer_service_pb.js";
import type { FarEnd, FarEndWanted } from "../ports/tunnels.ts";

/** For the replica to have its end opened; longer than what it waits itself. */
const OPEN_WITHIN_MS = 15_000;
/** For the replica to end a call both of whose directions have ended. */
const END_WITHIN_MS = 5_000;

export async function openPeerTunnel(
  client: Pick<Client<typeof PeerService>, "forwardTunnel">,
  wanted: FarEndWanted,
  signal: AbortSignal,
  clock: Clock,
): Promise<FarEnd> {
  const call = client.forwardTunnel({ signal });
  const responses = call.responses[Symbol.asyncIterator]();
  try {
    const opened = (async () => {
      await call.send(wanted);
      return responses.next();
    })();
    opened.catch(() => {});
    const first = await within(clock, OPEN_WITHIN_MS, opened, () => unavailable("it does not answer"));
    if (first.done || !first.value.opened) throw unavailable("it did not say that it began");
  } catch (error) {
    call.cancel();
    throw error;
  }
  const over = new AbortController();
  void call.ended.then((failure) => {
    if (failure !== undefined) over.abort(failure);
  });
  return {
    parts: partsOfResponses(responses),
    call: { signal: over.signal, fail: () => call.cancel() },
    send: (part) => call.send(part.case === "data" ? { data: part.value } : { end: true }),
    finish() {
      call.end();
      const stop = clock.after(END_WITHIN_MS, () => call.cancel());
      void call.ended.then(stop);
    },
  };
}

function unavailable(why: string): TendonError {
  return new TendonError("UNAVAILABLE", `the tunnel did not get through another replica: ${why}`, {
    part: "tunnel",
  });
}
