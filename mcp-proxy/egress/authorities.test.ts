import { X509Certificate } from "node:crypto";
import { expect, test } from "vitest";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import { newSealingKeys } from "../../test/kit/proxy-rig.ts";
import { Authorities } from "./authorities.ts";
import { LeafCertificates } from "./leaf-certificates.ts";

async function keysOf(authorities: Authorities, workspaceId: string): Promise<string[]> {
  const pem = await authorities.certificatesOf(workspaceId);
  return pem
    .split(/(?<=-----END CERTIFICATE-----)\n/)
    .filter((each) => each !== "")
    .map((each) => new X509Certificate(each))
    .map((certificate) => {
      expect([certificate.ca, certificate.verify(certificate.publicKey)]).toEqual([true, true]);
      return certificate.publicKey.export({ type: "spki", format: "der" }).toString("hex");
    });
}

test("all proxies with the same sealing key have one authority for a workspace, and no two workspaces have the same", async () => {
  const keys = await newSealingKeys();
  const [one, other] = [new Authorities(keys), new Authorities(keys)];
  expect(await keysOf(one, "wrkspc_a")).toEqual(await keysOf(other, "wrkspc_a"));
  expect(await keysOf(one, "wrkspc_a")).not.toEqual(await keysOf(one, "wrkspc_b"));
  expect(await keysOf(one, "wrkspc_a")).not.toEqual(
    await keysOf(new Authorities(await newSealingKeys()), "wrkspc_a"),
  );
});

test("with a new sealing key sandboxes trust both authorities, and the older signs until it is gone", async () => {
  const [newest, oldest] = await newSealingKeys(2);
  const authorities = new Authorities([newest, oldest!]);
  const before = new Authorities([oldest!]);
  const after = new Authorities([newest]);
  expect(await keysOf(authorities, "w")).toEqual([
    ...(await keysOf(after, "w")),
    ...(await keysOf(before, "w")),
  ]);
  const signing = async (of: Authorities) => (await of.signing("w")).certificate.subject;
  expect(await signing(authorities)).toBe(await signing(before));
  expect(await signing(authorities)).not.toBe(await signing(after));
});

test("a host's certificate is made once, and anew long before it is over", async () => {
  const clock = new FakeClock();
  const certificates = new LeafCertificates(new Authorities(await newSealingKeys()), clock);
  const first = await certificates.contextFor("w", "api.example");
  expect(await certificates.contextFor("w", "api.example")).toBe(first);
  expect(await certificates.contextFor("w", "other.example")).not.toBe(first);
  expect(await certificates.contextFor("neighbour", "api.example")).not.toBe(first);
  await clock.advance(86_400_001);
  expect(await certificates.contextFor("w", "api.example")).not.toBe(first);
});
