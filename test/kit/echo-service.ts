/** The implementation behind the tests of kit's transport: echoes, floods, fails and waits as its requests say. */

import { REASONS, type Reason, TendonError } from "../../kit/errors.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import type { EchoService } from "./proto/echo_pb.ts";

export class EchoRecorder {
  /** Method names whose `finally` ran. */
  readonly finished: string[] = [];
  /** What the calls' signals were aborted with. */
  readonly aborted: unknown[] = [];
  readonly peers: string[] = [];
  started = 0;
  yielded = 0;
  received = 0;

  implementation(): ServiceImplementation<typeof EchoService> {
    const recorder = this;
    return {
      async unary(request, context) {
        recorder.started += 1;
        recorder.peers.push(context.peer);
        if (request.failWith in REASONS) {
          throw new TendonError(request.failWith as Reason, `failed: ${request.text}`, {
            text: request.text,
          });
        }
        if (request.failWith === "bug") throw new Error("the secret is hunter2");
        if (request.failWith === "wait") {
          await new Promise<void>((resolve) => context.signal.addEventListener("abort", () => resolve()));
          recorder.aborted.push(context.signal.reason);
          recorder.finished.push("unary");
          throw context.signal.reason;
        }
        context.setResponseHeader("x-echo-header", context.requestHeaders.get("x-request") ?? "none");
        context.setResponseTrailer("x-echo-trailer", String(context.deadlineMs !== undefined));
        return { text: request.text, data: request.data };
      },
      async *serverStream(request, context) {
        recorder.started += 1;
        try {
          for (let index = 0; index < request.count; index++) {
            recorder.yielded = index + 1;
            yield { index, data: new Uint8Array(request.size) };
          }
          if (request.failWith === "wait") {
            await new Promise<void>((_, reject) =>
              context.signal.addEventListener("abort", () => reject(context.signal.reason)),
            );
          }
          if (request.failWith !== "") throw new TendonError(request.failWith as Reason, "failed at the end");
          context.setResponseTrailer("x-echo-trailer", "stream");
        } finally {
          if (context.signal.aborted) recorder.aborted.push(context.signal.reason);
          recorder.finished.push("serverStream");
        }
      },
      async clientStream(requests) {
        const texts: string[] = [];
        for await (const { text } of requests) texts.push(text);
        return { text: texts.join(",") };
      },
      async *bidi(requests, context) {
        recorder.started += 1;
        recorder.peers.push(context.peer);
        try {
          for await (const request of requests) {
            recorder.received += 1;
            if (request.failWith === "stall") await new Promise(() => {});
            if (request.failWith !== "")
              throw new TendonError(request.failWith as Reason, "failed in between");
            yield { text: request.text, data: request.data };
          }
        } finally {
          if (context.signal.aborted) recorder.aborted.push(context.signal.reason);
          recorder.finished.push("bidi");
        }
      },
    };
  }
}
