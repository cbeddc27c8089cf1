/** R22: what sandboxes of a session with variables send to a variable's hosts, from programs in hands to a real host. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { placeholderOf } from "../../kit/vault/placeholder.ts";
import { eventually } from "../kit/eventually.ts";
import { whyNoPrivateNetwork } from "../kit/private-network.ts";
import type { TunnelHand } from "../kit/tunnel-rig.ts";
import { startVariableRig, VALUE, type VariableRig } from "../kit/variable-rig.ts";

const PLACEHOLDER = placeholderOf("API_KEY");

describe.skipIf(whyNoPrivateNetwork() !== undefined)("a variable of a session", () => {
  let rig: VariableRig;
  let hand: TunnelHand;
  let at: string;
  beforeAll(async () => {
    rig = await startVariableRig();
    hand = await rig.newHand();
    at = rig.urlOf("api.example");
  });
  afterAll(() => rig?.stop());

  /** What the host got last. */
  const last = () => rig.host.seen.at(-1)!;

  test("is a placeholder in the hand, and its value at the host: in headers, in Basic credentials, in a body whose length is right", async () => {
    expect(await hand.bash('echo "$API_KEY"')).toBe(`${PLACEHOLDER}\n`);
    const said = await hand.bash(
      `curl -sS -H "X-Key: $API_KEY" -u "me:$API_KEY" --data-binary "a $API_KEY b" -H 'content-type: text/plain' ${at}/`,
    );
    const { headers, body } = last();
    expect(headers["x-key"]).toBe(VALUE);
    expect(headers.authorization).toBe(`Basic ${Buffer.from(`me:${VALUE}`).toString("base64")}`);
    expect(body.toString()).toBe(`a ${VALUE} b`);
    expect(headers["content-length"]).toBe(String(VALUE.length + 4));
    // The host repeats all three.
    expect(said).toBe("[redacted] Basic [redacted] a [redacted] b");
    const used = { action: "credential.inject", sessionId: hand.sessionId };
    const [entry] = await eventually(async () => {
      const entries = await rig.audit(used);
      return entries.length > 0 ? entries : undefined;
    });
    expect(JSON.parse(entry!.detail)).toMatchObject({ host: `api.example:${rig.host.port}`, result: "200" });
  });
});
