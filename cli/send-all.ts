/** Sends a stream of requests and gives its one answer. */

/** A call of the contract that takes a stream; see kit/rpc/client.ts. */
interface Sending<Request, Answer> {
  send(request: Request): Promise<void>;
  end(): Promise<Answer>;
  cancel(): void;
}

/** What fails on this side ends the call; what ended it on the other one is what is told. */
export async function sendAll<Request, Answer>(
  call: Sending<Request, Answer>,
  requests: AsyncIterable<Request>,
): Promise<Answer> {
  try {
    for await (const request of requests) await call.send(request);
  } catch (error) {
    call.cancel();
    await call.end().catch((ended: unknown) => {
      throw (ended as { reason?: unknown }).reason === "CANCELLED" ? error : ended;
    });
  }
  return call.end();
}
