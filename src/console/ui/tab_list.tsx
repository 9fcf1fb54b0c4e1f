/** The tabs of a page. Where they do not fit, the list is scrolled so that the chosen one is seen. */

import { type ReactNode, useEffect, useRef } from 'react';
import { TabList as AriaTabList, Tab } from 'react-aria-components';

interface TabListProps {
  label: string;
  selected: string;
  tabs: readonly { id: string; title: ReactNode }[];
}

export function TabList({ label, selected, tabs }: TabListProps) {
  const list = useRef<HTMLDivElement>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: what is chosen is read from the page
  useEffect(() => {
    // The tabs are on the page a moment after their list.
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
