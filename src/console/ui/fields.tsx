/** Form fields with a label, a description and an error. */

import { Check, ChevronDown } from 'lucide-react';
import type { ReactNode } from 'react';
import {
  Checkbox as AriaCheckbox,
  type CheckboxProps as AriaCheckboxProps,
  RadioGroup as AriaRadioGroup,
  Select as AriaSelect,
  Switch as AriaSwitch,
  TextField as AriaTextField,
  type TextFieldProps as AriaTextFieldProps,
  Button,
  FieldError,
  Input,
  Label,
  ListBox,
  ListBoxItem,
  Popover,
  Radio,
  SelectValue,
  Text,
  TextArea,
} from 'react-aria-components';

interface FieldWords {
  label: string;
  description?: ReactNode;
  /** The error; absent if the field is valid. */
  error?: string | null | undefined;
  /** A hint below a valid field. */
  good?: string | null;
}

export interface TextFieldProps
  extends Omit<AriaTextFieldProps, 'className' | 'style' | 'children'>,
    FieldWords {
  placeholder?: string;
  isMono?: boolean;
  isLong?: boolean;
}

export function TextField({
  label,
  description,
  error,
  good,
  placeholder,
  isMono = false,
  isLong = false,
  ...props
}: TextFieldProps) {
  const className = isMono ? 'input input-mono' : 'input';
  return (
    <AriaTextField {...props} className="field" isInvalid={error != null && error !== ''}>
      <Label className="field-label">{label}</Label>
      {isLong ? (
        <TextArea className={className} placeholder={placeholder} />
      ) : (
        <Input className={className} placeholder={placeholder} />
      )}
      {description !== undefined && (
        <Text slot="description" className="field-description">
          {description}
        </Text>
      )}
      <FieldError className="field-error">{error}</FieldError>
      {good != null && (error == null || error === '') && <p className="field-good">{good}</p>}
    </AriaTextField>
  );
}

export interface Choice {
  id: string;
  title: string;
  description?: string;
}

interface SelectFieldProps extends FieldWords {
  value: string;
  onChange: (id: string) => void;
  choices: readonly Choice[];
  isLabelHidden?: boolean;
}

export function SelectField({
  label,
  description,
  error,
  value,
  onChange,
  choices,
  isLabelHidden = false,
}: SelectFieldProps) {
  return (
    <AriaSelect
      className="field"
      value={value}
      onChange={(key) => onChange(String(key))}
      isInvalid={error != null}
    >
      <Label className={isLabelHidden ? 'visually-hidden' : 'field-label'}>{label}</Label>
      <Button className="select-button">
        <SelectValue className="select-value" />
        <ChevronDown size={16} aria-hidden />
      </Button>
      {description !== undefined && (
        <Text slot="description" className="field-description">
          {description}
        </Text>
      )}
      <FieldError className="field-error">{error}</FieldError>
      <Popover className="popover">
        <ListBox className="list-box" items={choices}>
          {(choice) => (
            <ListBoxItem className="list-item" textValue={choice.title}>
              {choice.title}
            </ListBoxItem>
          )}
        </ListBox>
      </Popover>
    </AriaSelect>
  );
}

interface ChoiceFieldProps extends FieldWords {
  value: string;
  onChange: (id: string) => void;
  choices: readonly Choice[];
}

/** A choice of one of a few visible options. */
export function ChoiceField({ label, description, error, value, onChange, choices }: ChoiceFieldProps) {
  return (
    <AriaRadioGroup className="field" value={value} onChange={onChange} isInvalid={error != null}>
      <Label className="field-label">{label}</Label>
      {description !== undefined && (
        <Text slot="description" className="field-description">
          {description}
        </Text>
      )}
      <div className="choices">
        {choices.map((choice) => (
          <Radio key={choice.id} value={choice.id} className="choice">
            <span className="choice-title">{choice.title}</span>
            {choice.description !== undefined && <span className="soft small">{choice.description}</span>}
          </Radio>
        ))}
      </div>
      <FieldError className="field-error">{error}</FieldError>
    </AriaRadioGroup>
  );
}

interface SwitchFieldProps {
  label: string;
  description?: ReactNode;
  isSelected: boolean;
  onChange: (isSelected: boolean) => void;
}

export function SwitchField({ label, description, isSelected, onChange }: SwitchFieldProps) {
  return (
    <AriaSwitch className="switch" isSelected={isSelected} onChange={onChange}>
      <span className="switch-track" />
      <span>
        <span className="choice-title">{label}</span>
        {description !== undefined && (
          <>
            <br />
            <span className="soft small">{description}</span>
          </>
        )}
      </span>
    </AriaSwitch>
  );
}

export function Checkbox({
  children,
  ...props
}: Omit<AriaCheckboxProps, 'className' | 'style' | 'children'> & { children?: ReactNode }) {
  return (
    <AriaCheckbox {...props} className="check">
      <span className="check-box">
        <Check size={14} strokeWidth={3} aria-hidden />
      </span>
      <span>{children}</span>
    </AriaCheckbox>
  );
}
