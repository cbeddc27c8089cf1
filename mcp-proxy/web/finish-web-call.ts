/** Stores a result as FinishWebCall does, whatever its size: content that does not fit into one message goes in pieces. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { CallOptions, Client } from "../../kit/rpc/client.ts";
import type {
  CredentialService,
  FinishWebCallRequestSchema,
} from "../../proto/gen/tendon/v1/credential_service_pb.js";

type Finish = Exclude<MessageInitShape<typeof FinishWebCallRequestSchema>, { $typeName: string }> & {
  readonly content: string;
};

/** As much as the contract lets one message have. */
const MAX_CONTENT_BYTES = 2 * 1024 * 1024;
const PIECE_BYTES = 1024 * 1024;

/** May be repeated: the first result stands. */
export async function finishWebCall(
  credentials: Pick<Client<typeof CredentialService>, "finishWebCall" | "finishLargeWebCall">,
  request: Finish,
  options: CallOptions,
): Promise<void> {
  if (Buffer.byteLength(request.content) <= MAX_CONTENT_BYTES) {
    await credentials.finishWebCall(request, options);
    return;
  }
  const bytes = Buffer.from(request.content, "utf8");
  const call = credentials.finishLargeWebCall(options);
  try {
    await call.send({ kind: { case: "request", value: { ...request, content: "" } } });
    for (let at = 0; at < bytes.length; at += PIECE_BYTES)
      await call.send({ kind: { case: "piece", value: bytes.subarray(at, at + PIECE_BYTES) } });
    await call.send({ kind: { case: "end", value: {} } });
  } catch {
    // The server has ended the call: its own error, below, says why.
  }
  await call.end();
}
