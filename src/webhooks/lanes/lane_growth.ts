/**
 * Finds deliveries that another node, the leader of the fan-out, has added to lanes of this node. Nothing tells a node of them, so it
 * looks again and again, for at most some tenth of the time.
 */

import type { Database } from '../../database/database.ts';
import type { BackgroundTasks } from './background_tasks.ts';
import { findGrownLanes } from './lane_store.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import type { Node } from './node.ts';

/** Lanes of one statement. */
const lanesMax = 5_000;
/** A look is followed by a pause of this multiple of its time, within these limits in milliseconds. */
const pauseFactor = 10;
const pauseMsMin = 50;
const pauseMsMax = 1_000;

export interface LaneGrowthOptions {
  db: Database;
  node: Node;
  lanes: LeasedLanes;
  background: BackgroundTasks;
}

export class LaneGrowth {
  readonly #options: LaneGrowthOptions;
  #lookAt = 0;
  #isLooking = false;
  /** Whether this node leads the fan-out. It knows then what grows, and looks rarely. */
  leads = false;

  constructor(options: LaneGrowthOptions) {
    this.#options = options;
  }

  tick(now: number): void {
    const { node, lanes, background } = this.#options;
    if (this.#isLooking || now < this.#lookAt || !node.hasPeers || lanes.size === 0) return;
    this.#isLooking = true;
    // After an error, too.
    this.#lookAt = now + pauseMsMax;
    background.run(async () => {
      try {
        await this.look();
        const endedAt = performance.now();
        const pauseMs = this.leads ? pauseMsMax : Math.max(pauseMsMin, pauseFactor * (endedAt - now));
        this.#lookAt = endedAt + Math.min(pauseMs, pauseMsMax);
      } finally {
        this.#isLooking = false;
      }
    });
  }

  /**
   * A lane with deliveries that are not read yet is looked at after them. Idle lanes are released after some seconds, so the others had a
   * delivery lately, or have a retry to come.
   * @param isAll whether to look at all lanes
   */
  async look(isAll = false): Promise<void> {
    const { db, lanes } = this.#options;
    const all = [...lanes.all()].filter((lane) => isAll || lane.readThrough >= lane.head);
    for (let first = 0; first < all.length; first += lanesMax) {
      for (const [id, head] of await findGrownLanes(db, all.slice(first, first + lanesMax))) {
        const lane = lanes.get(id);
        if (lane === undefined || head <= lane.head) continue;
        lane.head = head;
        lanes.reschedule(lane);
      }
    }
  }
}
