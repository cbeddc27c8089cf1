import { create } from "@bufbuild/protobuf";
import { afterEach, expect, test } from "vitest";
import { createLogger } from "../../kit/log.ts";
import type { CarryingCall } from "../../kit/tunnel/tunnel-stream.ts";
import { TunnelKind } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { AskTunnelSchema } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import { Tunnels } from "./tunnels.ts";

let opened: Tunnels | undefined;
afterEach(() => opened?.stop());

/** A server whose word on a tunnel does not come. */
const silentCall = (): CarryingCall => ({
  send: async () => {},
  end: () => {},
  cancel: () => {},
  responses: { [Symbol.asyncIterator]: () => ({ next: () => new Promise(() => {}) }) },
  ended: new Promise(() => {}),
});

function tunnels(): Tunnels {
  const client = { openTunnel: silentCall };
  const handlers = { git: () => {} };
  opened = new Tunnels({ client: client as never, handlers, log: createLogger("test", "silent") });
  return opened;
}

const askOf = (number: number, workspaceId: string) =>
  create(AskTunnelSchema, { tunnelId: `${number}`, sessionId: "sesn_1", workspaceId, kind: TunnelKind.GIT });

test("a workspace whose hands open all the connections that they can leaves room for the others'", () => {
  const proxy = tunnels();
  const answers = Array.from({ length: 1_200 }, (_, number) => proxy.asked(askOf(number, "wrkspc_a")).reason);
  expect(answers.filter((reason) => reason === "")).toHaveLength(1_000);
  expect(answers.at(-1)).toBe("LIMIT_EXCEEDED");
  const others = Array.from({ length: 600 }, (_, n) => proxy.asked(askOf(2_000 + n, "wrkspc_b")).reason);
  expect(others.filter((reason) => reason === "")).toHaveLength(500);
});
