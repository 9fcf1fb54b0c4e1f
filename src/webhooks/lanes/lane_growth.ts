/**
 * Finds deliveries that another node, the leader of the fan-out, has added to lanes of this node. Nothing tells a node of them, so it
 * looks again and again, for at most some tenth of the time. With very many lanes it looks at a part of them in turn, of which tenants have shares.
 */

import type { Database } from '../../database/database.ts';
import type { BackgroundTasks } from './background_tasks.ts';
import type { Lane } from './lane.ts';
import { findGrownLanes } from './lane_store.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import type { Node } from './node.ts';
import { Slices } from './slices.ts';

/** Lanes of one statement, and of one look. */
const lanesMax = 5_000;
const lookMax = 1_000;
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
  readonly #slices = new Slices<Lane>(lookMax, ({ tenant }) => tenant);
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
   * @param isAll whether to look at all lanes, at once
   */
  async look(isAll = false): Promise<void> {
    const { db, lanes } = this.#options;
    const all = [...lanes.all()].filter((lane) => isAll || lane.readThrough >= lane.head);
    const looked = isAll || this.leads ? all : this.#slices.next(all);
    for (let first = 0; first < looked.length; first += lanesMax) {
      for (const [id, head] of await findGrownLanes(db, looked.slice(first, first + lanesMax))) {
        const lane = lanes.get(id);
        if (lane === undefined || head <= lane.head) continue;
        lane.head = head;
        lanes.reschedule(lane);
      }
    }
  }
}
