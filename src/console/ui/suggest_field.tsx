/** A text field that suggests values and takes any other. */

import { ChevronDown } from 'lucide-react';
import { useEffect, useRef } from 'react';
import {
  ComboBox as AriaComboBox,
  Button,
  FieldError,
  Input,
  Label,
  ListBox,
  ListBoxItem,
  Popover,
} from 'react-aria-components';

export interface Suggestion {
  text: string;
  /** Shown beside the text. */
  note?: string;
}

interface SuggestFieldProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
  suggestions: readonly Suggestion[];
  placeholder?: string;
  error?: string | undefined;
  maxLength?: number;
  /** Gets the focus when it appears, and shows the suggestions. */
  autoFocus?: boolean;
}

/** The label is hidden: the place says what it is for. */
export function SuggestField({
  label,
  value,
  onChange,
  suggestions,
  placeholder,
  error,
  maxLength,
  autoFocus = false,
}: SuggestFieldProps) {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (!autoFocus) return;
    input.current?.scrollIntoView({ block: 'nearest' });
    // Before, the field does not know its suggestions. Scrolling would close them.
    let frame = requestAnimationFrame(() => {
      frame = requestAnimationFrame(() => input.current?.focus({ preventScroll: true }));
    });
    return () => cancelAnimationFrame(frame);
  }, [autoFocus]);
  return (
    <AriaComboBox
      className="field"
      allowsCustomValue
      // An open list hides the rest of the page from screen readers, also the error that the focus is moved to.
      menuTrigger={value === '' && error === undefined ? 'focus' : 'input'}
      inputValue={value}
      onInputChange={onChange}
      defaultItems={suggestions.map((each) => ({ id: each.text, ...each }))}
      isInvalid={error !== undefined}
    >
      <Label className="visually-hidden">{label}</Label>
      <div className="suggest">
        <Input ref={input} className="input input-mono" placeholder={placeholder} maxLength={maxLength} />
        {suggestions.length > 0 && (
          <Button className="suggest-button">
            <ChevronDown size={16} aria-hidden />
          </Button>
        )}
      </div>
      <FieldError className="field-error">{error}</FieldError>
      <Popover className="popover">
        <ListBox<Suggestion & { id: string }> className="list-box">
          {({ text, note }) => (
            <ListBoxItem className="list-item" textValue={text}>
              <span className="mono breakable">{text}</span>
              {note !== undefined && <span className="soft small nowrap">{note}</span>}
            </ListBoxItem>
          )}
        </ListBox>
      </Popover>
    </AriaComboBox>
  );
}
