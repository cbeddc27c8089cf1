/** A copy that goes through another replica: its bytes are passed on as they come, in both directions. */
import { type Clock, within } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { PeerService } from "../../proto/gen/tendon/v1/peer_service_pb.js";
import type { PeerTransfer } from "../ports/peers.ts";
import type { OpenTransfer, TransferPart } from "../ports/transfers.ts";

/** For the replica to have the agent open its stream. */
const OPEN_WITHIN_MS = 15_000;

export async function openPeerTransfer(
  client: Pick<Client<typeof PeerService>, "forwardTransfer">,
  { handAgentId, generation, command, signal }: PeerTransfer,
  clock: Clock,
): Promise<OpenTransfer> {
  const call = client.forwardTransfer({ signal });
  const responses = call.responses[Symbol.asyncIterator]();
  try {
    const start = { handAgentId, generation: BigInt(generation), transfer: command };
    const opened = (async () => {
      await call.send({ kind: { case: "start", value: start } });
      return responses.next();
    })();
    opened.catch(() => {});
    const first = await within(clock, OPEN_WITHIN_MS, opened, () => unavailable("it does not answer"));
    if (first.done || first.value.kind.case !== "opened") throw unavailable("it did not say that it began");
  } catch (error) {
    call.cancel();
    throw error;
  }

  async function send(inputs: AsyncIterable<TransferPart>): Promise<void> {
    for await (const kind of inputs) await call.send({ kind });
    call.end();
  }

  return {
    async *run(inputs) {
      let failure: unknown;
      // What the sender of the bytes says is the reason; the call that it ends says only that it was ended.
      const sending = send(inputs).catch((error: unknown) => {
        failure ??= error;
        call.cancel();
      });
      try {
        for (let next = await responses.next(); !next.done; next = await responses.next()) {
          const { kind } = next.value;
          if (kind.case !== "chunk" && kind.case !== "end") continue;
          yield kind;
          if (kind.case === "end") return;
        }
        throw unavailable("it ended the copy without saying how");
      } catch (error) {
        throw failure ?? error;
      } finally {
        call.cancel();
        void sending;
      }
    },
    close: () => call.cancel(),
  };
}

function unavailable(why: string): TendonError {
  return new TendonError(
    "UNAVAILABLE",
    `the copy could not go on over another replica of the server: ${why}; try again`,
  );
}
