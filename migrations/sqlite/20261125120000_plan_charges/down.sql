DROP TABLE plan_charges;
