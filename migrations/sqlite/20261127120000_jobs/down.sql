DROP TABLE provider_events;
DROP TABLE provider_objects;
DROP TABLE jobs;
