/** What hands this machine can make: every driver is tried, and what it says is told to people and to the server. */
import { create } from "@bufbuild/protobuf";
import { messageOf } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import { type DriverDescription, DriverDescriptionSchema } from "../proto/gen/tendon/v1/hand_pb.js";
import type { Driver } from "./drivers/driver.ts";

export interface DriverOffer {
  readonly name: string;
  readonly available: boolean;
  /** Name of what keeps hands apart; empty when the driver is not available. */
  readonly isolation: string;
  readonly detail: string;
  readonly description: DriverDescription;
  readonly driver: Driver;
}

export function probeDrivers(drivers: readonly Driver[]): Promise<DriverOffer[]> {
  return Promise.all(drivers.map(probeDriver));
}

async function probeDriver(driver: Driver): Promise<DriverOffer> {
  const probe = await driver.probe();
  const { available } = probe;
  const isolation = probe.available ? probe.isolation : "";
  const detail = probe.available ? probe.detail : probe.reason;
  const description = create(DriverDescriptionSchema, {
    name: driver.name,
    available,
    detail: (available ? `${isolation}: ${detail}` : detail).replaceAll("\n", " ").slice(0, 1_000),
    tools: driver.tools.map(({ name, description: text, inputSchema }) => ({
      name,
      description: text,
      inputSchema: JSON.stringify(inputSchema),
    })),
    capabilities: [
      ...(driver.capabilities.park ? ["park"] : []),
      ...(driver.capabilities.ownTools ? ["own_tools"] : []),
      ...(driver.capabilities.mounts ? ["session_files"] : []),
    ],
    images: available ? ((await driver.images?.().catch(() => [])) ?? []) : [],
  });
  return { name: driver.name, available, isolation, detail, description, driver };
}

/**
 * Looks again which images there are; resolves with the offers that have others now. Where that cannot be said, what was
 * said before stays. Never rejects.
 */
export async function refreshImages(offers: readonly DriverOffer[], log: Logger): Promise<DriverOffer[]> {
  const changed: DriverOffer[] = [];
  for (const offer of offers) {
    const { available, description, driver } = offer;
    if (!available || driver.images === undefined) continue;
    try {
      const images = await driver.images();
      const isSame =
        images.length === description.images.length &&
        images.every((name, i) => name === description.images[i]);
      if (!isSame) changed.push(offer);
      description.images = images;
    } catch (error) {
      log.warn(`the images of the driver ${driver.name} could not be listed: ${messageOf(error)}`);
    }
  }
  return changed;
}

/** One line a driver, at start. */
export function logOffers(log: Logger, offers: readonly DriverOffer[]): void {
  const anyAvailable = offers.some(({ available }) => available);
  for (const { name, available, isolation, detail } of offers) {
    // A machine without an engine is nothing to warn of, as long as it can make some hands.
    if (!available) log[anyAvailable ? "info" : "warn"]({ driver: name }, `no ${name} hands: ${detail}`);
    else if (isolation === "none") log.warn({ driver: name, isolation }, detail);
    else log.info({ driver: name, isolation }, detail);
  }
}
