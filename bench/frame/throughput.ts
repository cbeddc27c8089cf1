/** How much gets done when many workers each go on as soon as they are answered; contenders take turns, as in measure.ts. */

export interface ThroughputContender {
  readonly name: string;
  /** One operation of the worker, 0 to `workers` - 1. */
  once(worker: number): Promise<void>;
}

export interface Windows {
  readonly rounds: number;
  /** In each round, every contender has the machine for so long. */
  readonly windowMs: number;
  readonly workers: number;
}

/** Operations per second of each contender, over all its windows. One window of each is run first and not counted. */
export async function throughput(
  contenders: readonly ThroughputContender[],
  { rounds, windowMs, workers }: Windows,
): Promise<Map<string, number>> {
  const done = new Map(contenders.map(({ name }) => [name, { operations: 0, ms: 0 }]));
  for (let round = -1; round < rounds; round++) {
    for (let i = 0; i < contenders.length; i++) {
      const contender = contenders[
        (i + round + contenders.length) % contenders.length
      ] as ThroughputContender;
      const window = await runWindow(contender, windowMs, workers);
      const sum = done.get(contender.name);
      if (round < 0 || sum === undefined) continue;
      sum.operations += window.operations;
      sum.ms += window.ms;
    }
  }
  return new Map([...done].map(([name, { operations, ms }]) => [name, (operations * 1_000) / ms]));
}

async function runWindow({ once }: ThroughputContender, windowMs: number, workers: number) {
  let operations = 0;
  const startedMs = performance.now();
  const run = async (worker: number) => {
    while (performance.now() - startedMs < windowMs) {
      await once(worker);
      operations += 1;
    }
  };
  await Promise.all(Array.from({ length: workers }, (_, worker) => run(worker)));
  // Until the last answer: what was begun in the window is counted with the time that it took.
  return { operations, ms: performance.now() - startedMs };
}
