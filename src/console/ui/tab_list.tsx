/** The tabs of a page. The list scrolls to the selected tab where the tabs do not fit. */

import { type ReactNode, useEffect, useRef } from 'react';
import { TabList as AriaTabList, Tab } from 'react-aria-components';

interface TabListProps {
  label: string;
  selected: string;
  tabs: readonly { id: string; title: ReactNode }[];
}

export function TabList({ label, selected, tabs }: TabListProps) {
  const list = useRef<HTMLDivElement>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the selected tab is read from the page
  useEffect(() => {
    // The tabs render after their list.
    const frame = requestAnimationFrame(() => {
      const tab = list.current?.querySelector<HTMLElement>('[aria-selected="true"]');
      if (list.current === null || tab == null) return;
      const start = tab.offsetLeft - list.current.offsetLeft;
      list.current.scrollLeft = start - (list.current.clientWidth - tab.offsetWidth) / 2;
    });
    return () => cancelAnimationFrame(frame);
  }, [selected]);
  return (
    <AriaTabList ref={list} className="tab-list" aria-label={label}>
      {tabs.map(({ id, title }) => (
        <Tab key={id} id={id} className="tab">
          {title}
        </Tab>
      ))}
    </AriaTabList>
  );
}
