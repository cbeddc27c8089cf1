/** Connections of sandboxes to the proxy, from a program in a hand to a handler of the proxy: relay, agent, server, proxy. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { whyNoPrivateNetwork } from "../kit/private-network.ts";
import { startTunnelRig, type TunnelHand, type TunnelRig } from "../kit/tunnel-rig.ts";

describe.skipIf(whyNoPrivateNetwork() !== undefined)("a sandbox's connection to the proxy", () => {
  let rig: TunnelRig;
  let hand: TunnelHand;
  beforeAll(async () => {
    rig = await startTunnelRig();
    hand = await rig.newHand();
  }, 90_000);
  afterAll(() => rig?.stop());

  test("is opened for a host of a variable of its session, with what the server says of it", async () => {
    rig.handle = ({ stream }) => {
      stream.once("data", (asked) => stream.end(`you said ${asked}`));
    };
    const said = await hand.bash(
      "exec 3<>/dev/tcp/127.0.0.1/7480; printf 'CONNECT API.example:8443 HTTP/1.1\\r\\n\\r\\n' >&3; " +
        'read -r -u 3 status; read -r -u 3 empty; printf hello >&3; echo "$status"; cat <&3',
    );
    expect(said).toMatch(/^HTTP\/1.1 200 .*\r\nyou said hello$/);
    expect(rig.taken.at(-1)).toMatchObject({
      kind: "egress",
      sessionId: hand.sessionId,
      handId: hand.handId,
      workspaceId: rig.vault.home.workspaceId,
      epoch: 2,
      host: "api.example",
      port: 8443,
    });
  });
});
